// matmul: out (T, N) = x (T, K) * weight (N, K)^T + bias, over one or several packed weights.
//
// int8 path: x is rounded to int8 in blocks of 32 columns, or of 128 where the weights' blocks have
// 256, codes multiply in int32, and each sub-block's sum is scaled in float32. Exact path: weights
// are expanded to float32 and multiply x as it is; dense weights (F32, F16, BF16) always take it,
// unless they were packed as pairs of bfloat16: then x is rounded to such pairs. First the
// activations are prepared (panels.h), then they share the tiles of 16 rows (matmul_kernels.h,
// multiply_pairs.h).
#include <algorithm>

#include "isa_ops.h"
#include "matmul_kernels.h"
#include "multiply_pairs.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int64_t kQuantizeGroups = 32;  // groups of one work item when preparing x
constexpr int64_t kAloneGroups = 512;    // so few are prepared before a second thread would begin

// Everything that a work item reads: the prepared activations and what to do with them.
struct Job {
    const MatmulArgs& args;
    int64_t groups;
    uint8_t* fine_panels;  // panels one after another, in the order of their first tokens
    uint8_t* coarse_panels;
    float* dense_panels;
    int32_t* pair_panels;  // of bfloat16: [columns / 2][width]

    template <bool coarse>
    Panel panel(int64_t padded_first, int width) const {
        uint8_t* const panels = coarse ? coarse_panels : fine_panels;
        return Panel(panels + static_cast<size_t>(padded_first * groups) * kPanelBytes, groups,
                     width);
    }
    float* dense(int64_t padded_first) const { return dense_panels + padded_first * args.columns; }
    int64_t pairs() const { return (args.columns + 1) / 2; }
    int32_t* pair(int64_t padded_first) const { return pair_panels + padded_first * pairs(); }
};

template <class Block>
void run_quantized(const Job& job, const uint8_t* tile, int64_t t0, int64_t t1, int64_t padded,
                   float* acc) {
    if (job.args.exact) {
        alignas(64) float weights[kExactGroups * kGroup * kLanes];
        for (int64_t g0 = 0; g0 < job.groups; g0 += kExactGroups) {
            const int n = static_cast<int>(std::min<int64_t>(kExactGroups, job.groups - g0));
            expand_exact<Block>(tile, g0, n, weights);
            int64_t at = 0;
            for_each_panel(t0, t1, [&](int64_t, int width) {
                visit_width(width, [&](auto w) {
                    dense_panel<w.value>(weights, n * kGroup,
                                         job.dense(padded + at) + g0 * kGroup * width, g0 == 0,
                                         acc + at * kLanes);
                });
                at += width;
            });
        }
        return;
    }
    if (one_panel(t1 - t0)) {
        const int width = panel_width(t1 - t0);
        const Panel panel = job.panel<kCoarse<Block>>(padded, width);
        return visit_width(
            width, [&](auto w) { multiply_tile<Block, w.value>(tile, job.groups, panel, acc); });
    }
    Expanded expanded;
    for (int64_t g0 = 0; g0 < job.groups; g0 += kChunkGroups) {
        const int n = static_cast<int>(std::min<int64_t>(kChunkGroups, job.groups - g0));
        expand<Block>(tile, g0, n, expanded);
        int64_t at = 0;
        for_each_panel(t0, t1, [&](int64_t, int width) {
            visit_width(width, [&](auto w) {
                gemm_panel<Block, w.value>(expanded, n,
                                           job.panel<kCoarse<Block>>(padded + at, width), g0,
                                           acc + at * kLanes);
            });
            at += width;
        });
    }
}

template <class Element>
void run_dense(const Job& job, const uint8_t* tile, int64_t t0, int64_t t1, int64_t padded,
               float* acc) {
    const auto* weights = reinterpret_cast<const Element*>(tile);
    int64_t at = 0;
    for_each_panel(t0, t1, [&](int64_t, int width) {
        visit_width(width, [&](auto w) {
            dense_panel<w.value>(weights, job.args.columns, job.dense(padded + at), true,
                                 acc + at * kLanes);
        });
        at += width;
    });
}

#if defined(__AVX512VNNI__)
void run_pairs(const Job& job, const uint8_t* tile, int64_t t0, int64_t t1, int64_t padded,
               float* acc) {
    for_each_panel(t0, t1, [&](int64_t, int width) {
        multiply_pairs(width, reinterpret_cast<const int32_t*>(tile), job.pairs(), job.pair(padded),
                       acc);
        padded += width;
        acc += width * kLanes;
    });
}
#endif

void write_out(const Job& job, const MatmulTarget& target, int64_t tile, int64_t t0, int64_t t1,
               const float* acc) {
    const int64_t rows = target.weight.rows, first = tile * kLanes;
    const int n = static_cast<int>(std::min<int64_t>(kLanes, rows - first));
    int64_t at = 0;
    alignas(64) float bias[kLanes] = {};
    if (target.bias) std::copy_n(target.bias + first, n, bias);
    for_each_panel(t0, t1, [&](int64_t t, int width) {
        for (int i = 0; i < width && t + i < t1; ++i) {
            const float* from = acc + (at + i) * kLanes;
            float* to = target.out + (t + i) * rows + first;
            if (n == kLanes) {
                const F32 value = load(from) + load(bias);
                store(to, job.args.accumulate ? load(to) + value : value);
                continue;
            }
            for (int r = 0; r < n; ++r) {
                const float value = from[r] + bias[r];
                to[r] = job.args.accumulate ? to[r] + value : value;
            }
        }
        at += width;
    });
}

bool is_dense(Format format) {
    return format == Format::F32 || format == Format::F16 || format == Format::BF16 ||
           format == Format::MXFP6_E3M2;
}

// One tile of 16 rows for the tokens t0..t1, whose panels begin at padded token `padded`.
void run_tile(const Job& job, const MatmulTarget& target, int64_t tile, int64_t t0, int64_t t1,
              int64_t padded) {
    alignas(64) float acc[(kTokenBlock + kMaxWidth) * kLanes];
    const uint8_t* data = target.weight.data + static_cast<size_t>(tile) * target.weight.tile_bytes;
    switch (target.weight.format) {
        case Format::F32:
            run_dense<float>(job, data, t0, t1, padded, acc);
            break;
        case Format::F16:
            run_dense<Half>(job, data, t0, t1, padded, acc);
            break;
        case Format::BF16:
        case Format::MXFP6_E3M2:
            run_dense<BFloat>(job, data, t0, t1, padded, acc);
            break;
#if defined(__AVX512VNNI__)  // where alone they are packed
        case Format::BF16_PAIRS:
            run_pairs(job, data, t0, t1, padded, acc);
            break;
#endif
        default:
            visit_block(target.weight.format, [&](auto block) {
                run_quantized<decltype(block)>(job, data, t0, t1, padded, acc);
            });
    }
    write_out(job, target, tile, t0, t1, acc);
}

// The kinds of panels that the weights of a call read.
struct Kinds {
    bool fine = false, coarse = false, dense = false, pairs = false;
};

template <bool coarse>
void prepare_int8(const Job& job, const float* x, int64_t padded, int width, int t, int64_t g0,
                  int64_t g1, bool biased) {
    const Panel panel = job.panel<coarse>(padded, width);
    for (int64_t g = g0; g < g1; g += kLanes) {
        const int n = static_cast<int>(std::min<int64_t>(kLanes, g1 - g));
        quantize_groups<coarse>(x, panel, g, n, width, t, biased);
    }
}

// Fills the panels of the tokens t0..t1 for the groups g0..g1.
void prepare(const Job& job, int64_t t0, int64_t t1, int64_t padded, int64_t g0, int64_t g1,
             const Kinds& kinds) {
    const int64_t columns = job.args.columns;
    const bool biased = kBiasedTokens && !one_panel(t1 - t0);
    for_each_panel(t0, t1, [&](int64_t t, int width) {
        float* x_dense = job.dense(padded);
        int32_t* x_pairs = job.pair(padded);
        for (int i = 0; i < width; ++i) {
            const bool real = t + i < t1;
            const float* x = job.args.x + (t + i) * columns;
            const float* known = real ? x : nullptr;
            if (kinds.fine) prepare_int8<false>(job, known, padded, width, i, g0, g1, biased);
            if (kinds.coarse) prepare_int8<true>(job, known, padded, width, i, g0, g1, biased);
            const int64_t k1 = std::min(g1 * kGroup, columns);
            for (int64_t k = g0 * kGroup; kinds.dense && k < k1; ++k) {
                x_dense[k * width + i] = real ? x[k] : 0.0f;
            }
            for (int64_t k = g0 * kGroup; kinds.pairs && k < k1; k += 2) {
                const float low = real ? x[k] : 0.0f;
                const float high = real && k + 1 < columns ? x[k + 1] : 0.0f;
                x_pairs[k / 2 * width + i] = static_cast<int32_t>(bfloat_pair(low, high));
            }
        }
        padded += width;
    });
}

void add_kind(Kinds& kinds, Format format, bool exact) {
    if (format == Format::BF16_PAIRS) {
        kinds.pairs = true;
    } else if (is_dense(format) || exact) {
        kinds.dense = true;
    } else {
        visit_block(format, [&](auto block) {
            (kCoarse<decltype(block)> ? kinds.coarse : kinds.fine) = true;
        });
    }
}

}  // namespace

size_t matmul_workspace(int64_t tokens, int64_t columns, bool exact) {
    const auto padded = static_cast<size_t>(padded_tokens(tokens));
    const auto groups = static_cast<size_t>((columns + kGroup - 1) / kGroup);
    const size_t dense = padded * static_cast<size_t>(columns) * sizeof(float);
    const size_t pairs = padded * static_cast<size_t>((columns + 1) / 2) * sizeof(int32_t);
    return dense + pairs + (exact ? 0 : 2 * padded * groups * kPanelBytes) + 64;
}

void matmul(const MatmulArgs& args) {
    Kinds kinds;
    int64_t tiles = 0;
    for (int i = 0; i < args.n_targets; ++i) {
        add_kind(kinds, args.targets[i].weight.format, args.exact);
        tiles += (args.targets[i].weight.rows + kLanes - 1) / kLanes;
    }
    const int64_t groups = (args.columns + kGroup - 1) / kGroup;
    const int64_t padded = padded_tokens(args.tokens);
    const size_t int8 = args.exact ? 0 : static_cast<size_t>(padded * groups) * kPanelBytes;
    Job job{args, groups, args.workspace, args.workspace + int8, nullptr, nullptr};
    job.dense_panels = reinterpret_cast<float*>(args.workspace + 2 * int8);
    job.pair_panels = reinterpret_cast<int32_t*>(job.dense_panels + padded * args.columns);

    const int64_t blocks = (args.tokens + kTokenBlock - 1) / kTokenBlock;
    const int64_t pieces = (groups + kQuantizeGroups - 1) / kQuantizeGroups;
    const int64_t full_block = padded_tokens(kTokenBlock);
    const int64_t work = blocks * pieces;
    const bool alone = args.tokens * groups <= kAloneGroups;
    parallel_for(args.pool, work, alone ? work : 1, [&](int64_t item) {
        const int64_t b = item / pieces, g0 = item % pieces * kQuantizeGroups;
        prepare(job, b * kTokenBlock, std::min((b + 1) * kTokenBlock, args.tokens), b * full_block,
                g0, std::min(g0 + kQuantizeGroups, groups), kinds);
    });
    const int64_t items = blocks * tiles;
    parallel_for(args.pool, items, 1, [&](int64_t item) {
        const int64_t b = item / tiles;
        int64_t tile = item % tiles;
        const MatmulTarget* target = args.targets;
        for (;; ++target) {
            const int64_t own = (target->weight.rows + kLanes - 1) / kLanes;
            if (tile < own) break;
            tile -= own;
        }
        run_tile(job, *target, tile, b * kTokenBlock, std::min((b + 1) * kTokenBlock, args.tokens),
                 b * full_block);
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
