// The table of CPU ops: one function pointer an op, filled once per instruction set.
//
// Shapes: T tokens, D head dim, H query heads, G KV heads, K columns, N rows, P page size,
// S sequences. Arrays are C-contiguous; the bindings and backend.py have checked them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format.h"
#include "threads.h"

namespace rocmforge {

struct MatmulTarget {
    PackedView weight;
    const float* bias;  // (N,) or null
    float* out;         // (T, N)
};

struct MatmulArgs {
    const float* x;  // (T, K)
    int64_t tokens, columns;
    const MatmulTarget* targets;
    int n_targets;
    bool accumulate;  // out += instead of out =
    bool exact;       // float32 activations instead of int8 blocks
    bool swiglu;      // of two targets, gate and up: their SwiGLU to the first one's out alone
    uint8_t* workspace;
    ThreadPool& pool;
};

// Numbers of the KV cache. Q8_0 (D a multiple of 32): 32 neighbouring dims of a token have int8
// codes and an f16 scale. The page of a KV head has its codes first, K (D, P) and V (P, D), and
// behind all of them the scales, of K (D / 32, P) and of V (P, D / 32).
enum class PageType { F32, F16, Q8_0 };
constexpr int64_t kPageGroup = 32;

struct AttentionArgs {
    const float* q;             // (T, H, D)
    const void* k;              // (pages, G, D, P)
    const void* v;              // (pages, G, P, D)
    PageType type;              // of K and V
    const int32_t* page_table;  // (S, max_pages)
    const int32_t* lengths;     // (S,) tokens in the cache, this call's included
    const int32_t* starts;      // (S + 1,) first query row of each sequence
    int64_t sequences, max_pages, heads, kv_heads, head_dim, page_size;
    float scale;
    float* out;  // (T, H, D)
    ThreadPool& pool;
};

struct KvAppendArgs {
    const float* k;  // (T, G, D)
    const float* v;
    void* k_pages;
    void* v_pages;
    PageType type;
    const int32_t* pages;    // (T,)
    const int32_t* offsets;  // (T,)
    int64_t tokens, kv_heads, head_dim, page_size;
};

struct RopeArgs {
    float* x;          // (T, heads, D), in place
    const float* cos;  // (T, R / 2), R rotated dims
    const float* sin;
    int64_t tokens, heads, head_dim, rotated;
    bool interleaved;
    ThreadPool& pool;
};

// Multiplications of peak_products, each with its addition, and the sum of all of them.
struct PeakProducts {
    int64_t count;
    int64_t sum;  // 1.5 * count
};

struct Ops {
    const char* isa;
    // Bytes of a row in a GGUF file, 0 where the columns are no whole number of blocks; of a packed
    // tile of 16 rows; and of the workspace that a matmul of T tokens needs.
    int64_t (*row_bytes)(Format, int64_t columns);
    size_t (*tile_bytes)(Format, int64_t columns);
    size_t (*matmul_workspace)(int64_t tokens, int64_t columns, bool exact);
    // Packs rows that begin at a tile; those missing from the last tile become zeros.
    void (*pack)(const uint8_t* raw, Format, Format packed, int64_t rows, int64_t columns,
                 uint8_t* out, ThreadPool& pool);
    void (*matmul)(const MatmulArgs&);
    void (*dequantize)(const uint8_t* raw, Format, int64_t rows, int64_t columns, float* out,
                       ThreadPool& pool);
    void (*attention)(const AttentionArgs&);
    void (*kv_append)(const KvAppendArgs&);
    void (*rmsnorm)(const float* x, const float* weight, float eps, int64_t rows, int64_t columns,
                    float* out, ThreadPool& pool);
    void (*rope)(const RopeArgs&);
    void (*softmax)(const float* x, int64_t rows, int64_t columns, float* out, ThreadPool& pool);
    void (*swiglu)(const float* gate, const float* up, int64_t n, float* out, ThreadPool& pool);
    // For ceilings: `repeats` times the sum of a buffer of int32 below 2^7, whole vectors of 64
    // bytes; and a fixed number of products of float32 or of bytes on each thread.
    int64_t (*peak_reads)(const uint8_t* data, int64_t bytes, int64_t repeats, ThreadPool& pool);
    PeakProducts (*peak_products)(bool bytes, ThreadPool& pool);
};

// The ops for an instruction set: "avx512", "avx2" or "portable"; null where this build or this
// processor lacks it.
const Ops* ops_for(const char* isa);
// Whether those ops multiply BF16_PAIRS on this processor.
bool multiplies_pairs(const Ops& ops);
const Ops* best_ops();

}  // namespace rocmforge
