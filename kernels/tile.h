// A 16 x 16 x 16 product of f16 with sums in float, by one wave, on whatever unit there is:
//   D[m][n] += Σ_k A[m][k] · B[n][k]          A, B: 16 rows in LDS, k fastest;  D: in registers
// The units are WMMA of gfx11 and gfx12 (waves of 32), MFMA of CDNA (waves of 64) and mma.sync of
// NVIDIA (waves of 32). Elsewhere (gfx10, older GPUs, the host) dot products take their place. All
// lanes of a wave call everything.
//
// TileA a; TileB b; TileC c;  c.clear(); a.load(lds, stride); b.load(…); c.mma(a, b);
// c.each([&](int m, int n, float& value) { … });   visits the elements that this lane holds.
//
// Each *Map says what a lane holds. Element e of an operand is (line(lane, e), k(lane, e)), where a
// line is a row of A or of B; element v of the accumulator is (row(lane, v), column(lane, v)).
// AMD's instructions multiply the elements of A and B that stand at the same place of the same
// lanes. So any order of k will do, as long as A and B have the same: a lane reads neighbours in
// memory where the documents spread them (gfx12). tests/gpu/test_tile_maps.py checks the maps
// against the instructions' documents.
#pragma once

#include "mma_sync.h"

// RDNA3 ISA 7.9 and AMD's matrix instruction calculator, v_wmma_f32_16x16x16_f16, wave32:
// element e of lane l is A[l % 16][e], and lanes 16 to 31 repeat lanes 0 to 15; D's register v
// holds rows 2v (lanes 0 to 15) and 2v + 1.
struct WmmaGfx11Map {
    static constexpr int kLanes = 32, kHalves = 16, kValues = 8;
    static CONSTEXPR int line(int lane, int) { return lane % 16; }
    static CONSTEXPR int k(int, int e) { return e; }
    static CONSTEXPR int row(int lane, int v) { return 2 * v + lane / 16; }
    static CONSTEXPR int column(int lane, int) { return lane % 16; }
    // How many columns a lane's sums lie in, and after how many lanes the same columns come again.
    static constexpr int kColumns = 1, kColumnLanes = 16;
    static CONSTEXPR int column_index(int) { return 0; }
};

// RDNA4 ISA 7.9 and the calculator: nothing is repeated; element e of lane l is
// A[l % 16][8 (e / 4) + 4 (l / 16) + e % 4], read here as 8 (l / 16) + e; D's register v holds rows
// v (lanes 0 to 15) and 8 + v.
struct WmmaGfx12Map {
    static constexpr int kLanes = 32, kHalves = 8, kValues = 8;
    static CONSTEXPR int line(int lane, int) { return lane % 16; }
    static CONSTEXPR int k(int lane, int e) { return 8 * (lane / 16) + e; }
    static CONSTEXPR int row(int lane, int v) { return 8 * (lane / 16) + v; }
    static CONSTEXPR int column(int lane, int) { return lane % 16; }
    static constexpr int kColumns = 1, kColumnLanes = 16;
    static CONSTEXPR int column_index(int) { return 0; }
};

// CDNA2 and CDNA3 ISA and the calculator, v_mfma_f32_16x16x16f16, wave64: element e of lane l is
// A[l % 16][4 (l / 16) + e]; D's register v holds rows 4 (l / 16) + v.
struct MfmaMap {
    static constexpr int kLanes = 64, kHalves = 4, kValues = 4;
    static CONSTEXPR int line(int lane, int) { return lane % 16; }
    static CONSTEXPR int k(int lane, int e) { return 4 * (lane / 16) + e; }
    static CONSTEXPR int row(int lane, int v) { return 4 * (lane / 16) + v; }
    static CONSTEXPR int column(int lane, int) { return lane % 16; }
    static constexpr int kColumns = 1, kColumnLanes = 16;
    static CONSTEXPR int column_index(int) { return 0; }
};

// PTX ISA 9.7.14, two mma.m16n8k16 with f16 side by side: register e / 2 of an operand holds two
// neighbours in k. The registers of A go down first, then right; those of B hold one half of n
// after the other, and so do D's.
struct MmaSyncMap {
    static constexpr int kLanes = 32, kHalves = 8, kValues = 8;
    static CONSTEXPR int line_a(int lane, int e) { return lane / 4 + 8 * (e / 2 % 2); }
    static CONSTEXPR int k_a(int lane, int e) { return lane % 4 * 2 + e % 2 + 8 * (e / 4); }
    static CONSTEXPR int line_b(int lane, int e) { return lane / 4 + 8 * (e / 4); }
    static CONSTEXPR int k_b(int lane, int e) { return lane % 4 * 2 + e % 2 + 8 * (e / 2 % 2); }
    static CONSTEXPR int row(int lane, int v) { return lane / 4 + 8 * (v / 2 % 2); }
    static CONSTEXPR int column(int lane, int v) { return lane % 4 * 2 + v % 2 + 8 * (v / 4); }
    static constexpr int kColumns = 4, kColumnLanes = 4;
    static CONSTEXPR int column_index(int v) { return v % 2 + v / 4 * 2; }
};

// Without a matrix unit, a lane computes its sums alone, from whole lines of A and B. Its lines of
// A are lanes / 4 apart and those of B 4, so that the lanes of one load read neighbouring lines.
template <int lanes>
struct DotMap {
    static constexpr int kLanes = lanes, kValues = 256 / lanes;
    static constexpr int kColumns = 4, kRows = kValues / kColumns;
    static CONSTEXPR int row(int lane, int v) { return lane / 4 + lanes / 4 * (v / kColumns); }
    static CONSTEXPR int column(int lane, int v) { return lane % 4 + 4 * (v % kColumns); }
    static constexpr int kColumnLanes = 4;
    static CONSTEXPR int column_index(int v) { return v % kColumns; }
};

// Operands may also be made in registers. Then a lane gives kPer numbers, which follow one another
// in k, of each of its lines: set(i, pairs) takes those of line i, two in a word, and number p of
// them becomes element element_a(i, p) of A or element_b(i, p) of B. The kSpans = 16 / kPer lanes
// that hold parts of the same line are its spans. As any order of k will do, the numbers of a span
// may come from anywhere in the row, if they do so in A and in B. kPad pieces of 16 bytes behind
// each row of B in LDS spread what lanes read at once over the banks.
template <class Map>
struct MapShare {
    static constexpr int kPer = Map::kHalves, kSpans = 16 / kPer, kPad = 1;
    static constexpr int kLinesA = 1, kLinesB = 1;
    static CONSTEXPR int span(int lane) { return Map::k(lane, 0) / kPer; }
    static CONSTEXPR int line_a(int lane, int) { return Map::line(lane, 0); }
    static CONSTEXPR int line_b(int lane, int) { return Map::line(lane, 0); }
    static CONSTEXPR int element_a(int, int p) { return p; }
    static CONSTEXPR int element_b(int, int p) { return p; }
};
struct MmaSyncShare {
    static constexpr int kPer = 4, kSpans = 4, kPad = 4;
    static constexpr int kLinesA = 2, kLinesB = 2;
    static CONSTEXPR int span(int lane) { return lane % 4; }
    static CONSTEXPR int line_a(int lane, int i) { return lane / 4 + 8 * i; }
    static CONSTEXPR int line_b(int lane, int i) { return lane / 4 + 8 * i; }
    static CONSTEXPR int element_a(int i, int p) { return 2 * i + p % 2 + p / 2 * 4; }
    static CONSTEXPR int element_b(int i, int p) { return 4 * i + p; }
};
template <int lanes>
struct DotShare {
    using Map = DotMap<lanes>;
    static constexpr int kPer = 16, kSpans = 1, kPad = 1;
    static constexpr int kLinesA = Map::kRows, kLinesB = Map::kColumns;
    static CONSTEXPR int span(int) { return 0; }
    static CONSTEXPR int line_a(int lane, int i) { return Map::row(lane, i * Map::kColumns); }
    static CONSTEXPR int line_b(int lane, int i) { return Map::column(lane, i); }
};

// Where eight neighbours in k of a row lie, for rows that are `stride` numbers apart. load_from
// takes any function of (row, eight), with eight 0 or 1, that gives an address aligned to 16.
struct TileRows {
    const f16* lds;
    int stride;
    DEVICE const f16* operator()(int row, int eight) const {
        return lds + row * stride + 8 * eight;
    }
};

#if defined(ROCMFORGE_CUDA)

using TileShare = MmaSyncShare;

struct TileOperand {
    uint32_t words[4];

    // Lane l gives the address of line l % 8 of 8 x 8 part l / 8.
    DEVICE void read(const f16* address) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(address)))
                     : "memory");
    }
};

struct TileA : TileOperand {
    template <class Address>
    DEVICE void load_from(Address at) {
        read(at(lane() % 16, lane() / 16));
    }
    DEVICE void load(const f16* lds, int stride) { load_from(TileRows{lds, stride}); }
    // From a tile that has its lines across: number k of line m is lds[k * stride + m].
    DEVICE void load_transposed(const f16* lds, int stride) {
        const f16* const from = lds + (lane() % 8 + lane() / 16 * 8) * stride + lane() / 8 % 2 * 8;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
                     : "memory");
    }
    DEVICE void set(int i, const uint32_t* pairs) {
        UNROLL for (int p = 0; p < 2; ++p) words[TileShare::element_a(i, 2 * p) / 2] = pairs[p];
    }
};

struct TileB : TileOperand {
    template <class Address>
    DEVICE void load_from(Address at) {
        read(at(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2));
    }
    DEVICE void load(const f16* lds, int stride) { load_from(TileRows{lds, stride}); }
    DEVICE void set(int i, const uint32_t* pairs) {
        UNROLL for (int p = 0; p < 2; ++p) words[TileShare::element_b(i, 2 * p) / 2] = pairs[p];
    }
};

struct TileAccumulator {
    using Map = MmaSyncMap;
    float values[Map::kValues];

    DEVICE void mma(const TileA& a, const TileB& b) {
        UNROLL for (int half = 0; half < 2; ++half) {
            mma_sync(values + 4 * half, a.words, b.words[2 * half], b.words[2 * half + 1]);
        }
    }
};

#elif defined(ROCMFORGE_GFX11) || defined(ROCMFORGE_GFX12) || defined(ROCMFORGE_CDNA)

#if defined(ROCMFORGE_GFX11)
using TileMap = WmmaGfx11Map;
#elif defined(ROCMFORGE_GFX12)
using TileMap = WmmaGfx12Map;
#else
using TileMap = MfmaMap;
#endif

using TileShare = MapShare<TileMap>;

// A and B are held in the same way.
struct TileOperand {
    typedef _Float16 Halves __attribute__((ext_vector_type(TileMap::kHalves)));
    Halves halves;

    template <class Address>
    DEVICE void load_from(Address at) {
        const int line = TileMap::line(lane(), 0), k = TileMap::k(lane(), 0);
        if constexpr (TileMap::kHalves == 16) {
            u32x4 both[2] = {::load<u32x4>(at(line, 0)), ::load<u32x4>(at(line, 1))};
            memcpy(&halves, both, sizeof(halves));
        } else if constexpr (TileMap::kHalves == 8) {
            halves = bit_cast<Halves>(::load<u32x4>(at(line, k / 8)));
        } else {
            halves = bit_cast<Halves>(::load<u32x2>(at(line, k / 8) + k % 8));
        }
    }
    DEVICE void load(const f16* lds, int stride) { load_from(TileRows{lds, stride}); }
    DEVICE void set(int, const uint32_t* pairs) { memcpy(&halves, pairs, sizeof(halves)); }
};
struct TileA : TileOperand {};
struct TileB : TileOperand {};

struct TileAccumulator {
    using Map = TileMap;
    typedef float Values __attribute__((ext_vector_type(Map::kValues)));
    Values values;

    DEVICE void mma(const TileA& a, const TileB& b) {
#if defined(ROCMFORGE_GFX11)
        values = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a.halves, b.halves, values);
#elif defined(ROCMFORGE_GFX12)
        values = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a.halves, b.halves, values);
#else
        values = __builtin_amdgcn_mfma_f32_16x16x16f16(a.halves, b.halves, values, 0, 0, 0);
#endif
    }
};

#else

#if defined(ROCMFORGE_DOT)
#define ROCMFORGE_HALF_DOT 1
typedef _Float16 TilePair __attribute__((ext_vector_type(2)));
#endif

using TileShare = DotShare<WAVE>;

// Whole lines, as pairs of f16 where a dot product of two is there, else as float. The host
// converts them once per load; LDS must not change until the load returns, as on a GPU.
template <int lines>
struct TileLines {
#if defined(ROCMFORGE_HALF_DOT)
    TilePair pairs[lines][8];
#else
    float values[lines][16];
#endif

    template <class Address>
    DEVICE void read(Address at, int line, int step) {
        UNROLL for (int i = 0; i < lines; ++i) {
            UNROLL for (int eight = 0; eight < 2; ++eight) {
                const f16* from = at(line + step * i, eight);
#if defined(ROCMFORGE_HALF_DOT)
                const u32x4 v = ::load<u32x4>(from);
                pairs[i][4 * eight] = bit_cast<TilePair>(v.x);
                pairs[i][4 * eight + 1] = bit_cast<TilePair>(v.y);
                pairs[i][4 * eight + 2] = bit_cast<TilePair>(v.z);
                pairs[i][4 * eight + 3] = bit_cast<TilePair>(v.w);
#else
                UNROLL for (int k = 0; k < 8; ++k) values[i][8 * eight + k] = to_float(from[k]);
#endif
            }
        }
    }

    DEVICE void set(int i, const uint32_t* words) {
        UNROLL for (int k = 0; k < 8; ++k) {
#if defined(ROCMFORGE_HALF_DOT)
            pairs[i][k] = bit_cast<TilePair>(words[k]);
#else
            values[i][2 * k] = low_half(words[k]);
            values[i][2 * k + 1] = high_half(words[k]);
#endif
        }
    }
};

struct TileA : TileLines<DotMap<WAVE>::kRows> {
    template <class Address>
    DEVICE void load_from(Address at) {
        read(at, DotMap<WAVE>::row(lane(), 0), WAVE / 4);
    }
    DEVICE void load(const f16* lds, int stride) { load_from(TileRows{lds, stride}); }
#if defined(ROCMFORGE_HOST)
    DEVICE void load_transposed(const f16* lds, int stride) {
        for (int i = 0; i < DotMap<WAVE>::kRows; ++i) {
            const int line = DotMap<WAVE>::row(lane(), 0) + WAVE / 4 * i;
            for (int k = 0; k < 16; ++k) values[i][k] = to_float(lds[k * stride + line]);
        }
    }
#endif
};

struct TileB : TileLines<DotMap<WAVE>::kColumns> {
    template <class Address>
    DEVICE void load_from(Address at) {
        read(at, DotMap<WAVE>::column(lane(), 0), 4);
    }
    DEVICE void load(const f16* lds, int stride) { load_from(TileRows{lds, stride}); }
};

struct TileAccumulator {
    using Map = DotMap<WAVE>;
    float values[Map::kValues];

    DEVICE void mma(const TileA& a, const TileB& b) {
        UNROLL for (int v = 0; v < Map::kValues; ++v) {
            const int i = v / Map::kColumns, j = v % Map::kColumns;
#if defined(ROCMFORGE_HALF_DOT)
            UNROLL for (int k = 0; k < 8; ++k) {
                values[v] = __builtin_amdgcn_fdot2(a.pairs[i][k], b.pairs[j][k], values[v], false);
            }
#else
            UNROLL for (int k = 0; k < 16; ++k) values[v] += a.values[i][k] * b.values[j][k];
#endif
        }
    }
};

#endif

struct TileC : TileAccumulator {
    DEVICE void clear() { UNROLL for (int v = 0; v < Map::kValues; ++v) values[v] = 0.0f; }

    // settle of device.h; MFMA's compiler does well without.
    DEVICE void settle() {
#if !defined(ROCMFORGE_CDNA)
        UNROLL for (int v = 0; v < Map::kValues; ++v) {
            float value = values[v];
            ::settle(value);
            values[v] = value;
        }
#endif
    }

    // Calls f(row, column, value) for each element of this lane; f may change the value.
    template <class Function>
    DEVICE void each(Function f) {
        UNROLL for (int v = 0; v < Map::kValues; ++v) {
            float value = values[v];
            f(Map::row(lane(), v), Map::column(lane(), v), value);
            values[v] = value;
        }
    }
};

static_assert(TileC::Map::kLanes == WAVE, "the matrix unit wants another wave size");

// The sums, rounded to f16, as an operand of the next product: returns B with B[n][k] = c's
// D[k][n]. `lds` is kExchangeHalves f16 of this wave alone; units whose lanes can pass the sums on
// need none.
#if defined(ROCMFORGE_CUDA)
constexpr int kExchangeHalves = 0;
DEVICE TileB as_operand(const TileC& c, f16*) {
    TileB b;
    UNROLL for (int w = 0; w < 4; ++w) {
        b.words[w] = transposed(pack_halves(c.values[2 * w], c.values[2 * w + 1]));
    }
    return b;
}
#elif defined(ROCMFORGE_GFX11)
constexpr int kExchangeHalves = 0;
// Lane l holds the even k of line l, lane l + 16 the odd ones, and both need all of them.
DEVICE TileB as_operand(const TileC& c, f16*) {
    uint32_t words[8];
    const bool odd = lane() >= 16;
    UNROLL for (int w = 0; w < 4; ++w) {
        const uint32_t mine = pack_halves(c.values[2 * w], c.values[2 * w + 1]);
        const uint32_t theirs = shuffle_xor<16>(mine);
        const uint32_t low = odd ? theirs : mine, high = odd ? mine : theirs;
        words[2 * w] = (low & 0xffffu) | high << 16;
        words[2 * w + 1] = low >> 16 | (high & 0xffff0000u);
    }
    TileB b;
    memcpy(&b.halves, words, sizeof(words));
    return b;
}
#elif defined(ROCMFORGE_GFX12) || defined(ROCMFORGE_CDNA)
constexpr int kExchangeHalves = 0;
// Whether a lane's sums are the elements that it holds of the operand.
CONSTEXPR bool sums_are_operands() {
    for (int lane = 0; lane < TileMap::kLanes; ++lane) {
        for (int e = 0; e < TileMap::kHalves; ++e) {
            if (TileMap::row(lane, e) != TileMap::k(lane, e)) return false;
            if (TileMap::column(lane, e) != TileMap::line(lane, e)) return false;
        }
    }
    return TileMap::kHalves == TileMap::kValues;
}
static_assert(sums_are_operands());
DEVICE TileB as_operand(const TileC& c, f16*) {
    TileB b;
    UNROLL for (int e = 0; e < TileMap::kHalves; ++e) {
        b.halves[e] = static_cast<_Float16>(c.values[e]);
    }
    return b;
}
#else
constexpr int kExchangeHalves = 16 * 16;
DEVICE TileB as_operand(const TileC& c, f16* lds) {
    wave_sync();  // every lane has read the tile that was here before
    UNROLL for (int v = 0; v < TileC::Map::kValues; ++v) {
        const int k = TileC::Map::row(lane(), v), n = TileC::Map::column(lane(), v);
        lds[16 * n + k] = to_f16(c.values[v]);
    }
    wave_sync();
    TileB b;
    b.load(lds, 16);
    return b;
}
#endif
