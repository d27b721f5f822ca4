// The factor that rows of x still lack of their RMSNorm: 1 / sqrt(mean(h^2) + eps), where x is h
// times the norm's weights. It does not depend on the column, so a GEMV multiplies its sums by it
// at the end, and the first weights are on their way before anybody asks for it.
//
// `squares` (T, K / 32) float holds the sum of h^2 of each group of 32 columns; matmul_rmsnorm
// writes it. SCALED says whether there is such a factor; without one it is 1.
#pragma once

#include "gemv.h"
#include "q8.h"

#if !defined(SCALED)
#error "SCALED (0 or 1) has to be passed by the build"
#endif

struct Squares {
    const float* groups;
    float eps;
};

// The factors of a block's rows, in LDS. A wave finds that of a row, or of every WAVES-th.
class RowScale {
  public:
    DEVICE RowScale(const Squares& all, const Batch& of, float (&lds)[TOKENS])
        : squares(all), batch(of), factors(lds) {}

    // Asks for the squares; store() waits for them. Both before the barrier behind x.
    DEVICE void load() {
        if constexpr (SCALED) {
            const int groups = batch.columns / kGroup;
            UNROLL
            for (int i = 0; i < kTurns; ++i) {
                const float* const row =
                    squares.groups + minimum(token(i), batch.tokens - 1) * groups;
                parts[i] = 0.0f;
                if (token(i) >= TOKENS) continue;
                for (int at = lane(); at < groups; at += WAVE) parts[i] += row[at];
            }
        }
    }
    DEVICE void store() const {
        if constexpr (SCALED) {
            UNROLL
            for (int i = 0; i < kTurns; ++i) {
                if (token(i) >= TOKENS) continue;
                const float mean = wave_sum(parts[i]) / static_cast<float>(batch.columns);
                if (lane() == 0) {
                    factors[token(i)] = reciprocal_sqrt(mean + squares.eps);
                }
            }
        }
    }
    DEVICE float of(int token) const {
        if constexpr (SCALED) return factors[token];
        return 1.0f;
    }

  private:
    static constexpr int kTurns = (TOKENS + WAVES - 1) / WAVES;
    static DEVICE int token(int turn) { return turn * WAVES + static_cast<int>(wave()); }

    const Squares& squares;
    const Batch& batch;
    float (&factors)[TOKENS];
    float parts[kTurns];
};
