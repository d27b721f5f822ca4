// rope: rotary position embedding, in place on x (T, heads, D); dims past `rotated` stay.
//
// A pair (a, b) becomes (a cos - b sin, a sin + b cos). Pairs are (2i, 2i + 1) when interleaved
// (llama), (i, i + rotated / 2) otherwise (qwen2). cos and sin are (T, rotated / 2), one row a
// token.
#include "isa_ops.h"

namespace rocmforge::ROCMFORGE_ISA {

namespace {

constexpr int64_t kPieceTokens = 8;  // tokens that are worth another thread

}  // namespace

void rope(const RopeArgs& a) {
    const int64_t half = a.rotated / 2;
    parallel_for(a.pool, a.tokens, kPieceTokens, [&](int64_t t) {
        const float* cos = a.cos + t * half;
        const float* sin = a.sin + t * half;
        for (int64_t h = 0; h < a.heads; ++h) {
            float* x = a.x + (t * a.heads + h) * a.head_dim;
            if (a.interleaved) {
                for (int64_t i = 0; i < half; ++i) {
                    const float p = x[2 * i], q = x[2 * i + 1];
                    x[2 * i] = p * cos[i] - q * sin[i];
                    x[2 * i + 1] = p * sin[i] + q * cos[i];
                }
            } else {
                for (int64_t i = 0; i < half; ++i) {
                    const float p = x[i], q = x[i + half];
                    x[i] = p * cos[i] - q * sin[i];
                    x[i + half] = p * sin[i] + q * cos[i];
                }
            }
        }
    });
}

}  // namespace rocmforge::ROCMFORGE_ISA
