// What a mixture of experts does besides its products: choosing experts, and adding up their
// results. The products are matmul's.
//
// route: of the scores (T, E) of a token, softmax over all experts, or the sigmoid of each; the k
// largest are chosen, the largest first, of equal ones the first; with a bias, those that are
// largest together with it. add_experts: x (T, K) += sum of shares (T, k) * parts
// (T, k, K).
#include <algorithm>
#include <cmath>

#include "isa_ops.h"
#include "simd.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int64_t kRoutedTokens = 16;  // what is worth another thread

void route_token(const RouteArgs& args, int64_t t) {
    const float* scores = args.scores + t * args.count;
    float odds[kMaxExperts], ranks[kMaxExperts];
    const float largest = *std::max_element(scores, scores + args.count);
    float total = 0.0f, kept = 0.0f;
    for (int64_t e = 0; e < args.count; ++e) {
        odds[e] =
            args.sigmoid ? 1.0f / (1.0f + std::exp(-scores[e])) : std::exp(scores[e] - largest);
        ranks[e] = args.bias ? (args.sigmoid ? odds[e] : scores[e]) + args.bias[e] : scores[e];
        total += odds[e];
    }
    bool taken[kMaxExperts] = {};
    int32_t* experts = args.experts + t * args.chosen;
    float* shares = args.shares + t * args.chosen;
    for (int64_t i = 0; i < args.chosen; ++i) {
        int64_t best = -1;  // with NaN, which is larger than nothing, the first one left
        for (int64_t e = 0; e < args.count; ++e) {
            if (!taken[e] && (best < 0 || ranks[e] > ranks[best])) best = e;
        }
        taken[best] = true;
        experts[i] = static_cast<int32_t>(best);
        kept += shares[i] = odds[best];
    }
    const float whole = args.normalized ? kept : args.sigmoid ? 1.0f : total;
    for (int64_t i = 0; i < args.chosen; ++i) shares[i] *= args.scale / whole;
}

}  // namespace

void route(const RouteArgs& args) {
    parallel_for(args.pool, args.tokens, kRoutedTokens, [&](int64_t t) { route_token(args, t); });
}

void add_experts(const AddExpertsArgs& args) {
    const int64_t columns = args.columns, pieces = (columns + kLanes - 1) / kLanes;
    const int64_t least = kPieceFloats / (kLanes * args.chosen) + 1;
    parallel_for(args.pool, args.tokens * pieces, least, [&](int64_t item) {
        const int64_t t = item / pieces, first = item % pieces * kLanes;
        const float* shares = args.shares + t * args.chosen;
        const float* parts = args.parts + t * args.chosen * columns + first;
        float* x = args.x + t * columns + first;
        if (first + kLanes <= columns) {
            F32 sum = load(x);
            for (int64_t i = 0; i < args.chosen; ++i) {
                sum = sum + set1(shares[i]) * load(parts + i * columns);
            }
            return store(x, sum);
        }
        for (int64_t k = 0; first + k < columns; ++k) {
            for (int64_t i = 0; i < args.chosen; ++i) x[k] += shares[i] * parts[i * columns + k];
        }
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
