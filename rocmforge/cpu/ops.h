// The table of CPU ops: one function pointer an op, filled once per instruction set.
//
// Shapes: T tokens, D head dim, H query heads, G KV heads, K columns, N rows, P page size,
// S sequences. Arrays are C-contiguous; the bindings and backend.py have checked them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "format.h"
#include "threads.h"

namespace rocmforge {

// What a gated feed-forward part makes of gate and up: gate * sigmoid(gate) * up (SwiGLU);
// gelu(gate) * up, in tanh's form (GeGLU); or gpt-oss's, with both cut off: swiglu.h.
enum class Activation { Silu, Gelu, Clamped };

struct MatmulTarget {
    PackedView weight;
    const float* bias;  // (N,), of experts (E, N), or null
    float* out;         // (T, N); of experts (R, N)
};

// Which rows of the weights a product reads, where each weight holds E experts of N rows, one below
// the other: row r of out (R, N) is that of expert experts[r], times row r / sharing of x.
struct ExpertRows {
    const int32_t* experts;  // (R,), below E
    int64_t sharing;         // rows of out, one after another, that read the same row of x
    int64_t count;           // E
};

struct MatmulArgs {
    const float* x;             // (T, K); of experts (R / sharing, K)
    int64_t tokens, columns;    // T, or R of experts; K
    const ExpertRows* experts;  // null: all tokens read all rows of the weights
    const MatmulTarget* targets;
    int n_targets;
    bool accumulate;          // out += instead of out =
    float scale;              // multiplies products and biases
    bool exact;               // float32 activations instead of int8 blocks
    const Activation* gated;  // of two targets, gate and up: what becomes of them, to the first
                              // one's out alone; null: each target for itself
    uint8_t* workspace;
    ThreadPool& pool;
};

// Numbers of the KV cache. Q8_0 (D a multiple of 32): 32 neighbouring dims of a token have int8
// codes and an f16 scale. The page of a KV head has its codes first, K (D, P) and V (P, D), and
// behind all of them the scales, of K (D / 32, P) and of V (P, D / 32).
enum class PageType { F32, F16, Q8_0 };
constexpr int64_t kPageGroup = 32;
constexpr int kMaxHeadDim = 512;  // of attention; the same in rocmforge/plan/protocols.py

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
    int64_t window;      // tokens that a query sees at most, itself included; 0: all
    float softcap;       // c: scores become c * tanh(score / c); 0: they stay
    const float* sinks;  // (H,) scores of a token without a value, or null
    float* out;          // (T, H, D)
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

struct NormArgs {
    const float* x;       // (rows, K)
    const float* weight;  // (K,)
    const float* bias;    // (K,), of layernorm alone, or null
    float eps;
    int64_t rows, columns;
    bool accumulate;  // of rmsnorm alone: out += instead of out =
    float* out;       // (rows, K), may be x
    ThreadPool& pool;
};

struct RopeArgs {
    float* x;          // (T, heads, D), in place
    const float* cos;  // (T, R / 2), R rotated dims
    const float* sin;
    int64_t tokens, heads, head_dim, rotated;
    bool interleaved;
    ThreadPool& pool;
};

constexpr int64_t kMaxExperts = 1024;

struct RouteArgs {
    const float* scores;    // (T, E)
    int64_t tokens, count;  // T, E, at most kMaxExperts
    int64_t chosen;         // k, at most E
    bool normalized;        // the k shares of a token add up to `scale`
    bool sigmoid;           // shares are sigmoid(score) instead of softmax's
    float scale;            // multiplies the shares
    const float* bias;      // (E,) added to sigmoid(score), or to the score, to choose; or null
    int32_t* experts;       // (T, k)
    float* shares;          // (T, k)
    ThreadPool& pool;
};

struct AddExpertsArgs {
    const float* parts;   // (T, k, K)
    const float* shares;  // (T, k)
    int64_t tokens, chosen, columns;
    float* x;  // (T, K), added to
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
    size_t (*matmul_workspace)(int64_t tokens, int64_t columns, bool experts, bool exact);
    // Packs rows that begin at a tile; those missing from the last tile become zeros. Weights of
    // NVFP4 are multiplied by the factor.
    void (*pack)(const uint8_t* raw, Format, Format packed, int64_t rows, int64_t columns,
                 float factor, uint8_t* out, ThreadPool& pool);
    void (*matmul)(const MatmulArgs&);
    void (*dequantize)(const uint8_t* raw, Format, int64_t rows, int64_t columns, float* out,
                       ThreadPool& pool);
    void (*attention)(const AttentionArgs&);
    void (*kv_append)(const KvAppendArgs&);
    void (*rmsnorm)(const NormArgs&);
    void (*layernorm)(const NormArgs&);
    void (*rope)(const RopeArgs&);
    void (*softmax)(const float* x, int64_t rows, int64_t columns, float* out, ThreadPool& pool);
    void (*swiglu)(const float* gate, const float* up, int64_t n, Activation activation, float* out,
                   ThreadPool& pool);
    void (*gelu)(const float* x, int64_t n, float* out, ThreadPool& pool);
    void (*softcap)(const float* x, int64_t n, float cap, float* out, ThreadPool& pool);
    void (*route)(const RouteArgs&);
    void (*add_experts)(const AddExpertsArgs&);
    // For ceilings: `repeats` times the sum of a buffer of int32 below 2^7, whole vectors of 64
    // bytes; and a fixed number of products of float32 or of bytes on each thread.
    int64_t (*peak_reads)(const uint8_t* data, int64_t bytes, int64_t repeats, ThreadPool& pool);
    PeakProducts (*peak_products)(bool bytes, ThreadPool& pool);
};

// The instruction sets that this build has and this processor runs, best first.
std::vector<std::string> instruction_sets();
// The ops of one of them; null where it is none.
const Ops* ops_for(const char* isa);
// Whether those ops multiply BF16_PAIRS on this processor.
bool multiplies_pairs(const Ops& ops);
extern const bool kIsZen4;  // whether this processor is a Zen 4
const Ops* best_ops();

}  // namespace rocmforge
