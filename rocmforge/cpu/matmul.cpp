// matmul: out (T, N) = scale * (x (T, K) * weight (N, K)^T + bias), over one or several packed
// weights. gate_up_swiglu: out = swiglu(x * gate^T, x * up^T), a tile of both at a time.
//
// int8 path: x is rounded to int8 in blocks of 32 columns, or of 128 where the weights' blocks have
// 256, codes multiply in int32, and each sub-block's sum is scaled in float32. Exact path: weights
// are expanded to float32 and multiply x as it is; dense weights (F32, F16, BF16, MXFP6_E3M2)
// always take it, unless they were packed as pairs of bfloat16: then x is rounded to such pairs.
// First the activations are prepared (panels.h), then they share the tiles of 16 rows
// (matmul_kernels.h, multiply_pairs.h). Tokens of one expert are sorted together, and multiplied
// with its tiles alone.
#include <algorithm>
#include <numeric>
#include <vector>

#include "isa_ops.h"
#include "matmul_kernels.h"
#include "multiply_pairs.h"
#include "swiglu.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int64_t kQuantizeGroups = 32;  // groups of one work item when preparing x
constexpr int64_t kAloneGroups = 512;    // so few are prepared before a second thread would begin

// Tokens t0..t1 that are multiplied with the same rows of the weights, those of `expert`. Their
// panels begin at padded token `padded`. Only the last of these has padding, so that a token's sums
// stand at its place in the block. `prepares` is false where another block fills these panels.
struct Block {
    int64_t t0, t1, padded, expert;
    bool prepares;

    int64_t tokens() const { return t1 - t0; }
};

// Everything that a work item reads: the prepared activations and what to do with them.
struct Job {
    const MatmulArgs& args;
    const int32_t* order;  // of experts: the rows of out, sorted by expert
    int64_t experts, sharing;
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
    int64_t row(int64_t t) const { return order ? order[t] : t; }  // of out
    int64_t rows(const MatmulTarget& target) const { return target.weight.rows / experts; }
    int64_t tiles(const MatmulTarget& target) const { return (rows(target) - 1) / kLanes + 1; }
    int64_t pairs() const { return (args.columns + 1) / 2; }
    int32_t* pair(int64_t padded_first) const { return pair_panels + padded_first * pairs(); }
};

// A work item: one tile of 16 rows, of the block's expert, times a block.
struct Item {
    const Block& block;
    int64_t tile;

    int64_t tokens() const { return block.tokens(); }
    int64_t padded() const { return block.padded; }
};

// What becomes of the sums of an item, panel by panel as they are complete: so the results of one
// are written while the next is multiplied. Without a target they stay where they are; with those
// of a gate, what the activation makes of both is written.
struct Sink {
    const Job& job;
    const Item& item;
    const MatmulTarget* target;
    const float* gate;
    bool accumulate;

    void take(const float* acc, int64_t at, int width) const {
        if (!target) return;
        const int64_t rows = job.rows(*target), first = item.tile * kLanes;
        const int n = static_cast<int>(std::min<int64_t>(kLanes, rows - first));
        alignas(64) float bias[kLanes] = {}, gate_bias[kLanes] = {}, part[kLanes];
        const auto take_bias = [&](const MatmulTarget& of, float* to) {
            if (of.bias) std::copy_n(of.bias + item.block.expert * rows + first, n, to);
        };
        take_bias(job.args.gated ? job.args.targets[1] : *target, bias);
        if (gate) take_bias(*target, gate_bias);
        const int64_t t0 = item.block.t0, last = std::min(t0 + at + width, item.block.t1);
        for (int64_t t = t0 + at; t < last; ++t) {
            const int64_t from = (t - t0) * kLanes;
            float* to = target->out + job.row(t) * rows + first;
            F32 value = (load(acc + from) + load(bias)) * set1(job.args.scale);
            if (gate) value = gated(*job.args.gated, load(gate + from) + load(gate_bias), value);
            if (n == kLanes) {
                store(to, accumulate ? load(to) + value : value);
                continue;
            }
            store(part, value);
            for (int r = 0; r < n; ++r) to[r] = accumulate ? to[r] + part[r] : part[r];
        }
    }
};

template <class Block>
void run_quantized(const Job& job, const uint8_t* tile, const Item& item, float* acc,
                   const Sink& sink) {
    if (job.args.exact) {
        alignas(64) float weights[kExactGroups * kGroup * kLanes];
        for (int64_t g0 = 0; g0 < job.groups; g0 += kExactGroups) {
            const int n = static_cast<int>(std::min<int64_t>(kExactGroups, job.groups - g0));
            expand_exact<Block>(tile, g0, n, weights);
            for_each_panel(0, item.tokens(), [&](int64_t at, int width) {
                visit_width(width, [&](auto w) {
                    dense_panel<w.value>(weights, n * kGroup,
                                         job.dense(item.padded() + at) + g0 * kGroup * width,
                                         g0 == 0, acc + at * kLanes);
                });
                if (g0 + n == job.groups) sink.take(acc, at, width);
            });
        }
        return;
    }
    if (is_straight(item.tokens())) {
        return for_each_panel(0, item.tokens(), [&](int64_t at, int width) {
            const Panel panel = job.panel<kCoarse<Block>>(item.padded() + at, width);
            visit_width(width, [&](auto w) {
                multiply_tile<Block, w.value>(tile, job.groups, panel, acc + at * kLanes);
            });
            sink.take(acc, at, width);
        });
    }
    Expanded<Block> expanded;
    constexpr int piece = kChunkGroups / Packed<Block>::kGroups * Packed<Block>::kRecordBytes;
    const int panels = count_panels(item.tokens());
    for (int64_t g0 = 0; g0 < job.groups; g0 += kChunkGroups) {
        const int n = static_cast<int>(std::min<int64_t>(kChunkGroups, job.groups - g0));
        expand<Block>(tile, g0, n, expanded);
        NextPiece next(record_of<Block>(tile, g0 + kChunkGroups), piece, panels, kChunkGroups);
        for_each_panel(0, item.tokens(), [&](int64_t at, int width) {
            const Panel panel = job.panel<kCoarse<Block>>(item.padded() + at, width);
            visit_width(width, [&](auto w) {
                gemm_panel<Block, w.value>(expanded, n, panel, g0, next, acc + at * kLanes);
            });
            next.next_panel();
            if (g0 + n == job.groups) sink.take(acc, at, width);
        });
    }
}

// All panels take a piece of a dense tile before they go on to the next one, of which each asks for
// some meanwhile.
template <class Element>
void run_dense_pieces(const Job& job, const Element* tile, const Item& item, int panels, float* acc,
                      const Sink& sink) {
    const int64_t columns = job.args.columns;
    const int64_t piece = std::clamp<int64_t>(32 * panels, 64, 512);
    const int bytes = static_cast<int>(piece * kLanes * sizeof(Element));
    for (int64_t k = 0; k < columns; k += piece) {
        const int64_t n = std::min(piece, columns - k);
        const auto* after = reinterpret_cast<const uint8_t*>(tile + (k + piece) * kLanes);
        NextPiece next(after, bytes, panels, 1);
        for_each_panel(0, item.tokens(), [&](int64_t at, int width) {
            next.ask(0);
            next.next_panel();
            visit_width(width, [&](auto w) {
                dense_panel<w.value>(tile + k * kLanes, n,
                                     job.dense(item.padded() + at) + k * width, k == 0,
                                     acc + at * kLanes);
            });
            if (k + n == columns) sink.take(acc, at, width);
        });
    }
}

template <class Element>
void run_dense(const Job& job, const uint8_t* tile, const Item& item, float* acc,
               const Sink& sink) {
    if constexpr (!std::is_same_v<Element, Float8>) {
        const int panels = count_panels(item.tokens());
        const auto* weights = reinterpret_cast<const Element*>(tile);
        if (panels > 1) return run_dense_pieces(job, weights, item, panels, acc, sink);
    }
    for_each_panel(0, item.tokens(), [&](int64_t at, int width) {
        visit_width(width, [&](auto w) {
            dense_tile<w.value, Element>(tile, job.args.columns, job.dense(item.padded() + at),
                                         acc + at * kLanes);
        });
        sink.take(acc, at, width);
    });
}

#if defined(__AVX512VNNI__)
void run_pairs(const Job& job, const uint8_t* tile, const Item& item, float* acc,
               const Sink& sink) {
    for_each_panel(0, item.tokens(), [&](int64_t at, int width) {
        multiply_pairs(width, reinterpret_cast<const int32_t*>(tile), job.pairs(),
                       job.pair(item.padded() + at), acc + at * kLanes);
        sink.take(acc, at, width);
    });
}
#endif

bool is_dense(Format format) {
    return format == Format::F32 || format == Format::F16 || format == Format::BF16 ||
           format == Format::MXFP6_E3M2;
}

// acc [tokens][16] = the products of an item; each panel's go to `sink`.
void multiply(const Job& job, const MatmulTarget& target, const Item& item, float* acc,
              const Sink& sink) {
    const PackedView& weight = target.weight;
    const auto at = static_cast<size_t>(item.block.expert * job.tiles(target) + item.tile);
    const uint8_t* tile = weight.data + at * weight.tile_bytes;
    switch (weight.format) {
        case Format::F32:
            return run_dense<float>(job, tile, item, acc, sink);
        case Format::F16:
            return run_dense<Half>(job, tile, item, acc, sink);
        case Format::BF16:
            return run_dense<BFloat>(job, tile, item, acc, sink);
        case Format::MXFP6_E3M2:
            return run_dense<Float8>(job, tile, item, acc, sink);
#if defined(__AVX512VNNI__)  // where alone they are packed
        case Format::BF16_PAIRS:
            return run_pairs(job, tile, item, acc, sink);
#endif
        default:
            visit_block(weight.format, [&](auto block) {
                run_quantized<decltype(block)>(job, tile, item, acc, sink);
            });
    }
}

void run_item(const Job& job, const MatmulTarget& target, const Item& item) {
    constexpr int64_t size = (kTokenBlock + kMaxWidth) * kLanes;
    alignas(64) float acc[size];
    if (!job.args.gated) {
        const Sink sink{job, item, &target, nullptr, job.args.accumulate};
        return multiply(job, target, item, acc, sink);
    }
    alignas(64) float gate[size];
    multiply(job, target, item, gate, {job, item, nullptr, nullptr, false});
    multiply(job, job.args.targets[1], item, acc, {job, item, &target, gate, false});
}

// The kinds of panels that the weights of a call read; `shorts` are codes in 16 bits beside those
// in bytes.
struct Kinds {
    bool fine = false, coarse = false, dense = false, pairs = false, shorts = false;
};

template <bool coarse>
void prepare_int8(const Job& job, const float* const* x, int64_t padded, int width, int64_t g0,
                  int64_t g1, bool biased, bool shorts) {
    const Panel panel = job.panel<coarse>(padded, width);
    if constexpr (kMaxWidth == kLanes) {
        if (width == kLanes) {
            constexpr int step = coarse ? kCoarseGroups : 1;
            for (int64_t g = g0; g < g1; g += step) quantize_tokens<coarse>(x, panel, g, biased);
            return;
        }
    }
    for (int t = 0; t < width; ++t) {
        for (int64_t g = g0; g < g1; g += kLanes) {
            const int n = static_cast<int>(std::min<int64_t>(kLanes, g1 - g));
            quantize_groups<coarse>(x[t], panel, g, n, width, t, biased, shorts);
        }
    }
}

// Fills the panels of a block for the groups g0..g1.
void prepare(const Job& job, const Block& block, int64_t g0, int64_t g1, const Kinds& kinds) {
    const int64_t columns = job.args.columns, t1 = block.t1;
    const bool expanded = !is_straight(block.tokens());
    const bool biased = kBiasedTokens && expanded;
    const bool shorts = kSumsOf16Bits && expanded && kinds.shorts;
    int64_t padded = block.padded;
    for_each_panel(block.t0, t1, [&](int64_t t, int width) {
        float* x_dense = job.dense(padded);
        int32_t* x_pairs = job.pair(padded);
        const float* rows[kMaxWidth] = {};  // those of padding stay null
        for (int i = 0; i < width && t + i < t1; ++i) {
            rows[i] = job.args.x + job.row(t + i) / job.sharing * columns;
        }
        if (kinds.fine) prepare_int8<false>(job, rows, padded, width, g0, g1, biased, shorts);
        if (kinds.coarse) prepare_int8<true>(job, rows, padded, width, g0, g1, biased, shorts);
        for (int i = 0; i < width; ++i) {
            const float* x = rows[i];
            const int64_t k1 = std::min(g1 * kGroup, columns);
            for (int64_t k = g0 * kGroup; kinds.dense && k < k1; ++k) {
                x_dense[k * width + i] = x ? x[k] : 0.0f;
            }
            for (int64_t k = g0 * kGroup; kinds.pairs && k < k1; k += 2) {
                const float low = x ? x[k] : 0.0f;
                const float high = x && k + 1 < columns ? x[k + 1] : 0.0f;
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
            if constexpr (kExpanded<decltype(block)> == Form::kShorts) kinds.shorts = true;
        });
    }
}

// Adds the blocks of the tokens t0..t1, which read the same weights; returns the next padded token.
int64_t add_blocks(std::vector<Block>& blocks, int64_t t0, int64_t t1, int64_t padded,
                   int64_t expert) {
    for (; t0 < t1; t0 += kTokenBlock) {
        const int64_t end = std::min(t0 + kTokenBlock, t1);
        blocks.push_back({t0, end, padded, expert, true});
        padded += padded_tokens(end - t0);
    }
    return padded;
}

// Fills `order` with the rows of out, sorted by expert, and adds the blocks of each expert; returns
// the padded tokens of all. Experts with one token each share its panel: so does each of decode.
int64_t sort_by_expert(const MatmulArgs& args, std::vector<int32_t>& order,
                       std::vector<Block>& blocks) {
    const ExpertRows& rows = *args.experts;
    std::vector<int64_t> ends(static_cast<size_t>(rows.count) + 1);
    for (int64_t r = 0; r < args.tokens; ++r) ++ends[static_cast<size_t>(rows.experts[r]) + 1];
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    order.resize(static_cast<size_t>(args.tokens));
    for (int64_t r = 0; r < args.tokens; ++r) {
        const auto place =
            ends[static_cast<size_t>(rows.experts[r])]++;  // first a start, then an end
        order[static_cast<size_t>(place)] = static_cast<int32_t>(r);
    }
    std::vector<int64_t> alone(static_cast<size_t>(args.tokens / rows.sharing), -1);
    int64_t padded = 0, begin = 0;
    for (int64_t e = 0; e < rows.count; ++e) {
        const int64_t end = ends[static_cast<size_t>(e)];
        if (end - begin == 1) {
            int64_t& panel =
                alone[static_cast<size_t>(order[static_cast<size_t>(begin)] / rows.sharing)];
            blocks.push_back({begin, end, panel < 0 ? padded : panel, e, panel < 0});
            if (panel < 0) panel = padded++;
        } else {
            padded = add_blocks(blocks, begin, end, padded, e);
        }
        begin = end;
    }
    return padded;
}

}  // namespace

size_t matmul_workspace(int64_t tokens, int64_t columns, bool experts, bool exact) {
    // Each expert's last panel is padded by at most three eighths, so that twice is enough.
    const auto padded = static_cast<size_t>(experts ? 2 * tokens : padded_tokens(tokens));
    const auto groups = static_cast<size_t>((columns + kGroup - 1) / kGroup);
    const size_t dense = padded * static_cast<size_t>(columns) * sizeof(float);
    // Pairs of bfloat16 are multiplied on AVX-512 alone.
    const size_t pairs =
        kMaxWidth < kLanes ? 0 : padded * static_cast<size_t>((columns + 1) / 2) * sizeof(int32_t);
    return dense + pairs + (exact ? 0 : 2 * padded * groups * kPanelBytes) + 64;
}

void matmul(const MatmulArgs& args) {
    std::vector<int32_t> order;
    std::vector<Block> blocks;
    const int64_t padded = args.experts ? sort_by_expert(args, order, blocks)
                                        : add_blocks(blocks, 0, args.tokens, 0, 0);
    const int64_t groups = (args.columns + kGroup - 1) / kGroup;
    const size_t int8 = args.exact ? 0 : static_cast<size_t>(padded * groups) * kPanelBytes;
    Job job{args, nullptr, 1, 1, groups, args.workspace, args.workspace + int8, nullptr, nullptr};
    if (args.experts) {
        job.order = order.data();
        job.experts = args.experts->count;
        job.sharing = args.experts->sharing;
    }
    job.dense_panels = reinterpret_cast<float*>(args.workspace + 2 * int8);
    job.pair_panels = reinterpret_cast<int32_t*>(job.dense_panels + padded * args.columns);
    Kinds kinds;
    int64_t tiles = 0;
    for (int i = 0; i < args.n_targets; ++i) {
        add_kind(kinds, args.targets[i].weight.format, args.exact);
        if (args.gated && i > 0) continue;  // its tiles go with those of the first
        tiles += job.tiles(args.targets[i]);
    }

    const auto n_blocks = static_cast<int64_t>(blocks.size());
    const int64_t pieces = (groups + kQuantizeGroups - 1) / kQuantizeGroups;
    const int64_t work = n_blocks * pieces;
    const bool alone = args.tokens * groups <= kAloneGroups;
    parallel_for(args.pool, work, alone ? work : 1, [&](int64_t item) {
        const int64_t g0 = item % pieces * kQuantizeGroups;
        const Block& block = blocks[static_cast<size_t>(item / pieces)];
        if (block.prepares) prepare(job, block, g0, std::min(g0 + kQuantizeGroups, groups), kinds);
    });
    parallel_for(args.pool, n_blocks * tiles, 1, [&](int64_t item) {
        int64_t tile = item % tiles;
        const MatmulTarget* target = args.targets;
        for (; tile >= job.tiles(*target); ++target) tile -= job.tiles(*target);
        run_item(job, *target, {blocks[static_cast<size_t>(item / tiles)], tile});
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
