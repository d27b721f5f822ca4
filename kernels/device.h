// The same names for every compiler that builds the kernels: clang and hiprtc for AMD (gfx9 to
// gfx12), NVRTC for NVIDIA (sm_80 and later), and a C++ compiler that runs the same source on the
// CPU, under the tests' stand-in of the HIP runtime (ROCMFORGE_HOST).
//
// Here are types, thread indices, barriers, operations of a wave, f16, dot products of bytes and
// loads of 16 bytes. Matrix units are in tile.h. No vendor header is needed. The build passes WAVE,
// the lanes of a wave: 32 or 64.
#pragma once

#if !defined(WAVE)
#error "WAVE (32 or 64) has to be passed by the build"
#endif

#if defined(ROCMFORGE_HOST)
#define memcpy __builtin_memcpy  // no header: reading one takes longer than compiling a kernel
#elif defined(__CUDACC__)
#define ROCMFORGE_CUDA 1
#elif defined(__HIP__)
#define ROCMFORGE_AMD 1
#if !defined(__HIPCC_RTC__)
#define memcpy __builtin_memcpy
#endif
#else
#error "no known GPU compiler, and ROCMFORGE_HOST is not defined"
#endif

#if defined(ROCMFORGE_AMD)
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || \
    defined(__gfx1103__) || defined(__gfx1150__) || defined(__gfx1151__) || \
    defined(__gfx1152__) || defined(__gfx1153__)
#define ROCMFORGE_GFX11 1
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define ROCMFORGE_GFX12 1
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || \
    defined(__gfx942__) || defined(__gfx950__)
#define ROCMFORGE_CDNA 1
#endif
// Vega 20 and RDNA have dot products of bytes and of halves, and no matrix units before gfx11.
#if defined(__gfx906__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || \
    defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) ||                        \
    defined(__gfx1034__) || defined(__gfx1035__) || defined(__gfx1036__)
#define ROCMFORGE_DOT 1
#endif
#if defined(__AMDGCN_WAVEFRONT_SIZE__)
static_assert(WAVE == __AMDGCN_WAVEFRONT_SIZE__, "WAVE does not fit the target");
#endif
#endif

// ---- types -------------------------------------------------------------------------------------

using int8_t = signed char;  // hiprtc may define some of these already, as the same types
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
#if defined(ROCMFORGE_CUDA)
using u64 = unsigned long long;
#else
using u64 = unsigned long;
#endif

// An f16 as it lies in memory. Arithmetic is done in float.
struct f16 {
    uint16_t bits;
};
static_assert(sizeof(f16) == 2);

// Sixteen bytes, moved by one load or store; the address must be aligned to 16.
struct alignas(16) u32x4 {
    uint32_t x, y, z, w;
};
struct alignas(8) u32x2 {
    uint32_t x, y;
};

// ---- kernels, memory spaces, barriers ---------------------------------------------------------

// A kernel takes one struct by value: on every platform, that struct is the packed buffer of
// arguments. KERNEL(name, Args, threads) { … a.x … } defines a kernel; `threads` is its block size.
//
// From sm_90 on a kernel may start while the launch before it still runs, where the launch says so
// (rocmforge/gpu/launch.py). It must not touch what other kernels write, nor write anything, before
// await_earlier(), which all threads call. But it may load_from_l2() what launches before the one
// in front wrote: they have ended, for that one lets the next start only after its own wait. So in
// every launch at least one block must wait. KERNEL waits first. KERNEL_AHEAD leaves it to the
// kernel, which may load weights before. So does KERNEL_RESIDENT, of which CUDA keeps the
// registers so few that a multiprocessor holds `blocks` blocks at a time.
//
// SHARED is LDS, of 48 KB at most. SHARED_BY_LAUNCH(Type, name, count) may be larger: on CUDA the
// launch says how many bytes it has. A kernel has one at most, beside what is SHARED.
#if defined(ROCMFORGE_HOST)

struct HostDim {
    unsigned x, y, z;
};

// What the stand-in gives a kernel: the indices of this thread, and two ways to wait for others.
struct HostThread {
    HostDim thread, block, grid;
};
struct HostRuntime {
    const HostThread* (*self)();
    void (*block_barrier)();
    // Every lane of the wave must call. Each gives a value and gets that of lane `source`.
    u64 (*exchange)(u64 value, unsigned source);
};
extern "C" {
__attribute__((weak, visibility("default"))) const HostRuntime* rocmforge_host;
}

#define DEVICE inline
#define SHARED static
#define SHARED_BY_LAUNCH(Type, name, count) SHARED Type name[count]
#define KERNEL(name, Args, threads)                                                               \
    extern "C" __attribute__((visibility("default"))) const unsigned name##_threads = threads;    \
    extern "C" __attribute__((visibility("default"))) const unsigned name##_bytes = sizeof(Args); \
    extern "C" __attribute__((visibility("default"))) void name(const Args& a)
#define KERNEL_AHEAD KERNEL
#define KERNEL_RESIDENT(name, Args, threads, blocks) KERNEL(name, Args, threads)
#define ROLLED
#define UNROLL  // on a CPU, unrolled kernels compile up to twenty times longer and run no faster

DEVICE unsigned thread_x() {
    return rocmforge_host->self()->thread.x;
}
DEVICE unsigned block_x() {
    return rocmforge_host->self()->block.x;
}
DEVICE unsigned block_y() {
    return rocmforge_host->self()->block.y;
}
DEVICE unsigned block_z() {
    return rocmforge_host->self()->block.z;
}
DEVICE void block_sync() {
    rocmforge_host->block_barrier();
}
// Orders the LDS accesses of one wave's lanes.
DEVICE void wave_sync() {
    rocmforge_host->exchange(0, 0);
}

#else

#if defined(ROCMFORGE_AMD) && !defined(__HIPCC_RTC__)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#endif

#define DEVICE __device__ __forceinline__
#define SHARED __shared__
#define ROLLED _Pragma("unroll 1")  // for code that is met cold: each instruction is fetched
#define UNROLL _Pragma("unroll")
#if defined(ROCMFORGE_AMD)
#undef DEVICE
#define DEVICE __device__ inline __attribute__((always_inline))
#define SHARED_BY_LAUNCH(Type, name, count) SHARED Type name[count]
#define KERNEL(name, Args, threads)                                                           \
    extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(threads, threads))) \
    name(const Args a)
#define KERNEL_AHEAD KERNEL
#define KERNEL_RESIDENT(name, Args, threads, blocks) KERNEL(name, Args, threads)

DEVICE unsigned thread_x() {
    return __builtin_amdgcn_workitem_id_x();
}
DEVICE unsigned block_x() {
    return __builtin_amdgcn_workgroup_id_x();
}
DEVICE unsigned block_y() {
    return __builtin_amdgcn_workgroup_id_y();
}
DEVICE unsigned block_z() {
    return __builtin_amdgcn_workgroup_id_z();
}
DEVICE void block_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// Lanes of a wave run in step; the fence keeps the compiler from moving LDS accesses across.
DEVICE void wave_sync() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
}
#else
#define SHARED_BY_LAUNCH(Type, name, count)               \
    extern __shared__ __align__(1024) u32x4 name##_lds[]; \
    Type* const name = reinterpret_cast<Type*>(name##_lds)
#define KERNEL_RESIDENT(name, Args, threads, blocks)              \
    extern "C" __global__ void __launch_bounds__(threads, blocks) \
        name(const __grid_constant__ Args a)
#define KERNEL_AHEAD(name, Args, threads) KERNEL_RESIDENT(name, Args, threads, 1)
#define KERNEL(name, Args, threads)         \
    DEVICE void name##_body(const Args& a); \
    KERNEL_AHEAD(name, Args, threads) {     \
        await_earlier();                    \
        name##_body(a);                     \
    }                                       \
    DEVICE void name##_body(const Args& a)

DEVICE unsigned thread_x() {
    return threadIdx.x;
}
DEVICE unsigned block_x() {
    return blockIdx.x;
}
DEVICE unsigned block_y() {
    return blockIdx.y;
}
DEVICE unsigned block_z() {
    return blockIdx.z;
}
DEVICE void block_sync() {
    __syncthreads();
}
DEVICE void wave_sync() {
    __syncwarp();
}
#endif
#endif

// Waits until everything that earlier launches wrote can be read, and then lets the next one start:
// started before, it would take room that this one needs.
DEVICE void await_earlier() {
#if defined(ROCMFORGE_CUDA) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A function that the compiler can compute from constants, and that kernels can call as well.
#if defined(ROCMFORGE_CUDA)
#define CONSTEXPR __host__ __device__ __forceinline__ constexpr
#else
#define CONSTEXPR inline constexpr
#endif

DEVICE unsigned lane() {
    return thread_x() % WAVE;
}
DEVICE unsigned wave() {
    return thread_x() / WAVE;
}

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

template <int a, int b>
constexpr int kLarger = a > b ? a : b;

// ---- bits --------------------------------------------------------------------------------------

template <class To, class From>
DEVICE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

#if defined(ROCMFORGE_CUDA)
DEVICE float to_float(f16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
DEVICE f16 to_f16(float f) {
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
#elif defined(ROCMFORGE_AMD)
DEVICE float to_float(f16 h) {
    return static_cast<float>(bit_cast<_Float16>(h));
}
DEVICE f16 to_f16(float f) {
    return bit_cast<f16>(static_cast<_Float16>(f));
}
#else
DEVICE float to_float(f16 h) {
    const uint32_t sign = (h.bits & 0x8000u) << 16, exponent = (h.bits >> 10) & 31;
    const uint32_t mantissa = h.bits & 0x3ffu;
    if (exponent == 0) {
        const float f = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -f : f;
    }
    const uint32_t e = exponent == 31 ? 255 : exponent + 112;
    return bit_cast<float>(sign | e << 23 | mantissa << 13);
}
// Rounds to the nearest, ties to even, as the GPUs do.
DEVICE f16 to_f16(float f) {
    const uint32_t bits = bit_cast<uint32_t>(f), sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (size >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
    if (size < 0x38800000u) {  // subnormal or zero: the adder rounds to multiples of 2^-24
        const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(size) + 0.5f) - 0x3f000000u;
        return {static_cast<uint16_t>(sign | small)};
    }
    const uint32_t rounded = size + 0xfffu + (size >> 13 & 1);
    return {static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13)};
}
#endif

DEVICE float bf16_to_float(uint16_t bits) {
    return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The two f16 of a word, low first.
DEVICE float low_half(uint32_t word) {
    return to_float(f16{static_cast<uint16_t>(word)});
}
DEVICE float high_half(uint32_t word) {
    return to_float(f16{static_cast<uint16_t>(word >> 16)});
}
DEVICE uint32_t pack_halves(float low, float high) {
    return to_f16(low).bits | static_cast<uint32_t>(to_f16(high).bits) << 16;
}

// ---- arithmetic
// ----------------------------------------------------------------------------------

constexpr float kLog2OfE = 1.44269504089f;

#if defined(ROCMFORGE_HOST)
DEVICE float fast_exp(float x) {
    return __builtin_expf(x);
}
DEVICE float fast_exp2(float x) {
    return __builtin_exp2f(x);
}
DEVICE float fast_log(float x) {
    return __builtin_logf(x);
}
DEVICE float reciprocal_sqrt(float x) {
    return 1.0f / __builtin_sqrtf(x);
}
DEVICE float round_even(float x) {
    return __builtin_nearbyintf(x);
}
DEVICE float absolute(float x) {
    return __builtin_fabsf(x);
}
DEVICE float maximum(float x, float y) {
    return __builtin_fmaxf(x, y);
}
DEVICE float minimum(float x, float y) {
    return __builtin_fminf(x, y);
}
#elif defined(ROCMFORGE_AMD)
#if __has_builtin(__builtin_amdgcn_exp2f)
#define native_exp2 __builtin_amdgcn_exp2f
#define native_log2 __builtin_amdgcn_logf
#else  // before LLVM 18, where these are the same instructions
#define native_exp2 __builtin_exp2f
#define native_log2 __builtin_log2f
#endif
DEVICE float fast_exp2(float x) {
    return native_exp2(x);
}
DEVICE float fast_exp(float x) {
    return fast_exp2(x * kLog2OfE);
}
DEVICE float fast_log(float x) {
    return native_log2(x) * 0.69314718056f;
}
DEVICE float reciprocal_sqrt(float x) {
    return __builtin_amdgcn_rsqf(x);
}
DEVICE float round_even(float x) {
    return __builtin_rintf(x);
}
DEVICE float absolute(float x) {
    return __builtin_fabsf(x);
}
DEVICE float maximum(float x, float y) {
    return __builtin_fmaxf(x, y);
}
DEVICE float minimum(float x, float y) {
    return __builtin_fminf(x, y);
}
#else
DEVICE float fast_exp(float x) {
    return __expf(x);
}
DEVICE float fast_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
DEVICE float fast_log(float x) {
    return __logf(x);
}
DEVICE float reciprocal_sqrt(float x) {
    return rsqrtf(x);
}
DEVICE float round_even(float x) {
    return rintf(x);
}
DEVICE float absolute(float x) {
    return fabsf(x);
}
DEVICE float maximum(float x, float y) {
    return fmaxf(x, y);
}
DEVICE float minimum(float x, float y) {
    return fminf(x, y);
}
#endif

DEVICE float infinity() {
    return bit_cast<float>(0x7f800000u);
}

DEVICE int minimum(int x, int y) {
    return x < y ? x : y;
}
DEVICE int maximum(int x, int y) {
    return x > y ? x : y;
}

// Makes the compiler compute the value before this point. Without it AMD's compiler moves long sums
// past later branches and keeps everything they need in registers until then.
DEVICE void settle(float& value) {
#if defined(ROCMFORGE_AMD)
    asm volatile("" : "+v"(value));
#endif
}

// c + Σ a.byte[i] · b.byte[i] over four signed bytes.
DEVICE int dot4(uint32_t a, uint32_t b, int c) {
#if defined(ROCMFORGE_CUDA)
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#elif defined(ROCMFORGE_GFX11) || defined(ROCMFORGE_GFX12)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(ROCMFORGE_CDNA) || defined(ROCMFORGE_DOT)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int i = 0; i < 4; ++i) {
        c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    }
    return c;
#endif
}

// Looks four bytes, each below 8, up in a table of eight bytes (two words, first entry lowest).
DEVICE uint32_t lookup8(const uint32_t (&table)[2], uint32_t places) {
#if defined(ROCMFORGE_CUDA)
    // A selector takes a place from each nibble of its lower half.
    const uint32_t pairs = (places | places >> 4) & 0x00ff00ffu;
    uint32_t found;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(found)
        : "r"(table[0]), "r"(table[1]), "r"((pairs | pairs >> 8) & 0xffffu));
    return found;
#elif defined(ROCMFORGE_AMD)
    return __builtin_amdgcn_perm(table[1], table[0], places);
#else
    uint32_t found = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t place = places >> (8 * i) & 7;
        found |= (table[place / 4] >> (8 * (place % 4)) & 255) << (8 * i);
    }
    return found;
#endif
}

// Whether lookup8_or_0 is one instruction.
#if defined(ROCMFORGE_AMD)
constexpr bool kSelectsNibbles = false;
#else
constexpr bool kSelectsNibbles = true;
#endif

// Looks the low four nibbles up in a table of eight bytes, each below 128 (two words, first entry
// lowest). A nibble above 7 gives 0.
DEVICE uint32_t lookup8_or_0(const uint32_t (&table)[2], uint32_t nibbles) {
#if defined(ROCMFORGE_CUDA)
    uint32_t found;  // the highest bit of a selector asks for the sign of the entry, in all bits
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(table[0]), "r"(table[1]), "r"(nibbles));
    return found;
#else
    uint32_t found = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t place = nibbles >> (4 * i) & 15;
        if (place < 8) found |= (table[place / 4] >> (8 * (place % 4)) & 255) << (8 * i);
    }
    return found;
#endif
}

// The bytes of two words in turns: a0 b0 a1 b1, and a2 b2 a3 b3.
DEVICE u32x2 zip_bytes(uint32_t a, uint32_t b) {
#if defined(ROCMFORGE_CUDA)
    return {__byte_perm(a, b, 0x5140), __byte_perm(a, b, 0x7362)};
#else
    const auto spread = [](uint32_t half) { return (half & 0xffu) | (half & 0xff00u) << 8; };
    return {spread(a & 0xffffu) | spread(b & 0xffffu) << 8, spread(a >> 16) | spread(b >> 16) << 8};
#endif
}

// Looks eight nibbles up in a table of sixteen bytes (four words, first entry lowest). Byte i of
// `low` is the entry of the low nibble of byte i, byte i of `high` that of its high nibble.
DEVICE void lookup16(const uint32_t (&table)[4], uint32_t nibbles, uint32_t& low, uint32_t& high) {
#if defined(ROCMFORGE_CUDA)
    const auto permute = [](uint32_t a, uint32_t b, uint32_t select) {
        uint32_t r;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
        return r;
    };
    // A selector picks one of eight bytes; a second step chooses between the table's halves.
    const uint32_t within = nibbles & 0x77777777u;
    const uint32_t half = (nibbles & 0x88888888u) >> 1 | 0x32103210u;
    const uint32_t a =
        permute(permute(table[0], table[1], within), permute(table[2], table[3], within), half);
    const uint32_t b = permute(permute(table[0], table[1], within >> 16),
                               permute(table[2], table[3], within >> 16), half >> 16);
    low = permute(a, b, 0x6420u);
    high = permute(a, b, 0x7531u);
#elif defined(ROCMFORGE_AMD)
    const auto pick = [&](uint32_t n) {
        const uint32_t within = n & 0x07070707u, half = (n & 0x08080808u) >> 1 | 0x03020100u;
        return __builtin_amdgcn_perm(__builtin_amdgcn_perm(table[3], table[2], within),
                                     __builtin_amdgcn_perm(table[1], table[0], within), half);
    };
    low = pick(nibbles);
    high = pick(nibbles >> 4);
#else
    low = high = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t l = nibbles >> (8 * i) & 15, h = nibbles >> (8 * i + 4) & 15;
        low |= (table[l / 4] >> (8 * (l % 4)) & 255) << (8 * i);
        high |= (table[h / 4] >> (8 * (h % 4)) & 255) << (8 * i);
    }
#endif
}

// ---- wave operations: every lane of the wave must call them ------------------------------------

// The value of lane `lane() ^ kMask`.
template <int kMask>
DEVICE uint32_t shuffle_xor(uint32_t value) {
    static_assert(kMask > 0 && kMask < WAVE);
#if defined(ROCMFORGE_HOST)
    return static_cast<uint32_t>(rocmforge_host->exchange(value, lane() ^ kMask));
#elif defined(ROCMFORGE_CUDA)
    return __shfl_xor_sync(0xffffffffu, value, kMask);
#else
    if constexpr (kMask < 32) {
        return __builtin_amdgcn_ds_swizzle(value, kMask << 10 | 0x1f);
    } else {
        return __builtin_amdgcn_ds_bpermute((lane() ^ kMask) << 2, value);
    }
#endif
}
template <int kMask>
DEVICE float shuffle_xor(float value) {
    return bit_cast<float>(shuffle_xor<kMask>(bit_cast<uint32_t>(value)));
}
template <int kMask>
DEVICE int shuffle_xor(int value) {
    return static_cast<int>(shuffle_xor<kMask>(static_cast<uint32_t>(value)));
}
template <int kMask>
DEVICE u64 shuffle_xor(u64 value) {
    const uint32_t low = shuffle_xor<kMask>(static_cast<uint32_t>(value));
    const uint32_t high = shuffle_xor<kMask>(static_cast<uint32_t>(value >> 32));
    return static_cast<u64>(high) << 32 | low;
}

// The value of lane `source`, which may differ from lane to lane.
DEVICE uint32_t shuffle(uint32_t value, unsigned source) {
#if defined(ROCMFORGE_HOST)
    return static_cast<uint32_t>(rocmforge_host->exchange(value, source));
#elif defined(ROCMFORGE_CUDA)
    return __shfl_sync(0xffffffffu, value, source);
#else
    return __builtin_amdgcn_ds_bpermute(source << 2, value);
#endif
}
DEVICE float shuffle(float value, unsigned source) {
    return bit_cast<float>(shuffle(bit_cast<uint32_t>(value), source));
}
DEVICE int shuffle(int value, unsigned source) {
    return static_cast<int>(shuffle(static_cast<uint32_t>(value), source));
}
DEVICE u64 shuffle(u64 value, unsigned source) {
    const uint32_t low = shuffle(static_cast<uint32_t>(value), source);
    const uint32_t high = shuffle(static_cast<uint32_t>(value >> 32), source);
    return static_cast<u64>(high) << 32 | low;
}

// Sum of the wave's lanes up to this one.
DEVICE u64 wave_prefix(u64 value) {
    for (unsigned step = 1; step < WAVE; step *= 2) {
        const u64 other = shuffle(value, lane() >= step ? lane() - step : lane());
        if (lane() >= step) value += other;
    }
    return value;
}

// Sum and maximum over groups of kLanes neighbouring lanes (a power of two); every lane gets it.
template <int kLanes = WAVE, class T>
DEVICE T wave_sum(T value) {
    if constexpr (kLanes > 32) value += shuffle_xor<(WAVE > 32 ? 32 : 1)>(value);
    if constexpr (kLanes > 16) value += shuffle_xor<16>(value);
    if constexpr (kLanes > 8) value += shuffle_xor<8>(value);
    if constexpr (kLanes > 4) value += shuffle_xor<4>(value);
    if constexpr (kLanes > 2) value += shuffle_xor<2>(value);
    if constexpr (kLanes > 1) value += shuffle_xor<1>(value);
    return value;
}
template <int kLanes = WAVE>
DEVICE float wave_max(float value) {
    if constexpr (kLanes > 32) value = maximum(value, shuffle_xor<(WAVE > 32 ? 32 : 1)>(value));
    if constexpr (kLanes > 16) value = maximum(value, shuffle_xor<16>(value));
    if constexpr (kLanes > 8) value = maximum(value, shuffle_xor<8>(value));
    if constexpr (kLanes > 4) value = maximum(value, shuffle_xor<4>(value));
    if constexpr (kLanes > 2) value = maximum(value, shuffle_xor<2>(value));
    if constexpr (kLanes > 1) value = maximum(value, shuffle_xor<1>(value));
    return value;
}

// Whether it holds in any lane of the wave. All of them must call.
DEVICE bool any_lane(bool holds) {
#if defined(ROCMFORGE_CUDA)
    return __any_sync(0xffffffffu, holds);
#elif defined(ROCMFORGE_AMD)
    constexpr int kNotEqual = 33;  // LLVM's number; compilers of ROCm 5 have no ballot of 64 lanes
    return __builtin_amdgcn_uicmp(holds, 0u, kNotEqual) != 0;
#else
    return wave_max(holds ? 1.0f : 0.0f) > 0.0f;
#endif
}

// Sum over a block of kThreads threads; every thread gets it. `scratch` is kThreads / WAVE values
// in LDS. There is a barrier at the start and one at the end, so the scratch may be used again.
template <int kThreads, class T>
DEVICE T block_sum(T value, T* scratch) {
    value = wave_sum(value);
    block_sync();
    if (lane() == 0) scratch[wave()] = value;
    block_sync();
    T total = scratch[0];
    for (int i = 1; i < kThreads / WAVE; ++i) total += scratch[i];
    block_sync();
    return total;
}
// Maximum, likewise; there is no barrier at the end, so a barrier has to come before the scratch is
// written again.
template <int kThreads>
DEVICE float block_max(float value, float* scratch) {
    value = wave_max(value);
    block_sync();
    if (lane() == 0) scratch[wave()] = value;
    block_sync();
    for (int i = 0; i < kThreads / WAVE; ++i) value = maximum(value, scratch[i]);
    return value;
}

// ---- memory
// --------------------------------------------------------------------------------------

// One or two bytes, as a word, of memory that nobody writes meanwhile. CUDA's load widens them
// itself: the compiler may put an instruction of its own for that, and with it the wait for the
// load, right behind the load.
template <int kBytes>
DEVICE uint32_t load_widened(const uint8_t* p) {
    static_assert(kBytes == 1 || kBytes == 2);
#if defined(ROCMFORGE_CUDA)
    uint32_t word;
    const u64 at = __cvta_generic_to_global(p);
    if constexpr (kBytes == 1) asm("ld.global.u8 %0, [%1];" : "=r"(word) : "l"(at));
    if constexpr (kBytes == 2) asm("ld.global.u16 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
#else
    if constexpr (kBytes == 1) return *p;
    return *reinterpret_cast<const uint16_t*>(p);
#endif
}

// One load of sizeof(T) bytes, which must be 4, 8 or 16, from an aligned address.
template <class T>
DEVICE T load(const void* address) {
    return *static_cast<const T*>(address);
}

// Who sees a word that is stored or loaded whole: the device, or also the host and other devices.
enum class Scope { kDevice, kSystem };

// Stores and loads of 4 or 8 bytes, each whole. They order nothing else.
template <Scope kScope, class T>
DEVICE void store_relaxed(T* to, T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if defined(ROCMFORGE_CUDA)
    constexpr bool kWide = sizeof(T) == 8, kNear = kScope == Scope::kDevice;
    const u64 at = __cvta_generic_to_global(to);
    if constexpr (kWide && kNear) {
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    } else if constexpr (kWide) {
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    } else if constexpr (kNear) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
    } else {
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
    }
#elif defined(ROCMFORGE_AMD)
    constexpr bool kNear = kScope == Scope::kDevice;
    __hip_atomic_store(to, value, __ATOMIC_RELAXED,
                       kNear ? __HIP_MEMORY_SCOPE_AGENT : __HIP_MEMORY_SCOPE_SYSTEM);
#else
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
#endif
}
template <Scope kScope, class T>
DEVICE T load_relaxed(const T* from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if defined(ROCMFORGE_CUDA)
    constexpr bool kWide = sizeof(T) == 8, kNear = kScope == Scope::kDevice;
    const u64 at = __cvta_generic_to_global(from);
    T value;
    if constexpr (kWide && kNear) {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    } else if constexpr (kWide) {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    } else if constexpr (kNear) {
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    } else {
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    }
    return value;
#elif defined(ROCMFORGE_AMD)
    constexpr bool kNear = kScope == Scope::kDevice;
    return __hip_atomic_load(from, __ATOMIC_RELAXED,
                             kNear ? __HIP_MEMORY_SCOPE_AGENT : __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
}

// A word that a launch before the one in front wrote, for reads before await_earlier(). It comes
// from the L2 cache, because a nearer one may still hold what was there earlier.
DEVICE int load_from_l2(const int* p) {
#if defined(ROCMFORGE_CUDA)
    return load_relaxed<Scope::kDevice>(p);
#else
    return *p;
#endif
}

// Adds to a word in LDS to which other threads of the block add as well; returns what it was
// before.
DEVICE uint32_t shared_add(uint32_t* word, uint32_t value) {
#if defined(ROCMFORGE_HOST)
    const uint32_t before = *word;
    *word += value;
    return before;
#elif defined(ROCMFORGE_CUDA)
    return atomicAdd(word, value);
#else
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
#endif
}

// Sixteen bytes on their way from memory to LDS; zeros where there are none. CUDA copies them past
// the registers: start() writes to LDS at some time until wait(). Elsewhere they are held until
// land() writes them, so that only one batch can be on its way. A batch is what all threads start
// until they call batch_started(); wait<n>() waits for all batches but the last n. arrive<n>() is
// both. Other threads see what has arrived after a block_sync().
struct Transfer {
#if defined(ROCMFORGE_CUDA)
    DEVICE void start(u32x4* to, const void* from, bool present) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                     "l"(from), "r"(present ? 16 : 0)
                     : "memory");
    }
    static DEVICE void batch_started() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <int kLater>
    static DEVICE void wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
    }
    DEVICE void land(u32x4*) {}
#else
    u32x4 held;

    DEVICE void start([[maybe_unused]] u32x4* to, const void* from, bool present) {
        held = {0, 0, 0, 0};
        if (present) held = load<u32x4>(from);
#if defined(ROCMFORGE_HOST)
        *to = held;  // as early as CUDA may, so that tests see a copy that is started too early
#endif
    }
    static DEVICE void batch_started() {}
    template <int kLater>
    static DEVICE void wait() {
#if !defined(ROCMFORGE_HOST)
        static_assert(kLater == 0);
#endif
    }
    DEVICE void land(u32x4* to) { *to = held; }
#endif

    template <int kLater>
    DEVICE void arrive(u32x4* to) {
        wait<kLater>();
        land(to);
    }
};

#if !defined(ROCMFORGE_AMD)
// A Transfer of 4 or 16 bytes, which belongs to the same batches. It stays in the near cache, for
// other waves of the multiprocessor that read the same. Of `from` the first `bytes` are read; the
// rest becomes 0.
template <class Piece>
DEVICE void copy_begin_to_lds(Piece* to, const void* from, int bytes) {
#if defined(ROCMFORGE_CUDA)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from), "n"(sizeof(Piece)), "r"(bytes)
                 : "memory");
#else
    *to = Piece{};
    memcpy(to, from, bytes);
#endif
}
template <class Piece>
DEVICE void copy_near_to_lds(Piece* to, const void* from, bool present) {
    copy_begin_to_lds(to, from, present ? static_cast<int>(sizeof(Piece)) : 0);
}
#endif

// Adds to a counter in memory and returns what it held. What a block wrote is visible to a block
// that adds later if a barrier stands between the writes and the first addition, and one between
// the second addition and the reads. AMD also needs release() before and acquire() after.
DEVICE uint32_t fetch_add(uint32_t* counter, uint32_t addend) {
#if defined(ROCMFORGE_CUDA)
    uint32_t held;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(held)
                 : "l"(__cvta_generic_to_global(counter)), "r"(addend)
                 : "memory");
    return held;
#elif defined(ROCMFORGE_AMD)
    return __hip_atomic_fetch_add(counter, addend, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    const uint32_t held = *counter;
    *counter += addend;
    return held;
#endif
}
DEVICE void release() {
#if defined(ROCMFORGE_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#endif
}
DEVICE void acquire() {
#if defined(ROCMFORGE_AMD)
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#endif
}

// Whether this block is the last of `count` blocks to call this with the same counter, which then
// holds 0 again. It may read what all of them wrote to memory before. All threads must call;
// `word` is one in LDS.
DEVICE bool last_to_arrive(uint32_t* counter, uint32_t count, uint32_t* word) {
    release();
    block_sync();
    if (thread_x() == 0) {
        *word = fetch_add(counter, 1);
        if (*word == count - 1) *counter = 0;
    }
    block_sync();
    const bool last = *word == count - 1;
    if (last) acquire();
    return last;
}

// Two blocks meet at a counter that holds 0: the first one to come writes what the other one needs
// and calls leave(); the other one calls take(), and may read it then. The counter holds 0 again.
// All threads of a block must call; `word` is one in LDS, the same in all calls.
constexpr uint32_t kCame = 1, kLeft = 2;

DEVICE bool first_of_two(uint32_t* counter, uint32_t* word) {
    if (thread_x() == 0) *word = fetch_add(counter, kCame);
    block_sync();
    return *word == 0;
}
DEVICE void leave(uint32_t* counter) {
    release();
    block_sync();
    if (thread_x() == 0) fetch_add(counter, kLeft);
}
DEVICE void take(uint32_t* counter, const uint32_t* word) {
    if (thread_x() == 0) {
        uint32_t held = *word + kCame;
        while (held != 2 * kCame + kLeft) held = fetch_add(counter, 0);
        *counter = 0;
    }
    block_sync();
    acquire();
}

// A load of 16 bytes that are read only once, such as weights: they need not stay in the caches.
DEVICE u32x4 load_once(const void* address) {
#if defined(ROCMFORGE_CUDA)
    u32x4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
#elif defined(ROCMFORGE_AMD)
    typedef uint32_t vector __attribute__((ext_vector_type(4)));
    const vector v = __builtin_nontemporal_load(static_cast<const vector*>(address));
    return {v.x, v.y, v.z, v.w};
#else
    return load<u32x4>(address);
#endif
}
