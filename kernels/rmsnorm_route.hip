// rmsnorm_route: h = x / sqrt(mean(x^2) + eps) * norm, the scores h router^T + bias of all experts,
// and which experts each token goes to (choose_experts.h).
//
//   x        (T, K) float
//   norm     (K,) float
//   router   (E, K) of ROUTER, dense, packed (packed.h)
//   bias     (E,) float, or null
//   h        (T, K) float or Q8 as OUT says (output.h)
//   words    (T, E) of 64 bits, which hold 0 before and after: scores on their way (handover.h)
// All are aligned to 16.
//
// Threads: a block takes the score of one expert for one token. It finds the norm's factor for
// itself, and writes the groups of 32 columns e, e + E, … of h. The block of a token's last expert
// takes all scores and chooses. Grid (E, T).
// Limits: E at most PLACES, PLACES at most THREADS; K a multiple of 32.
// Launched by rocmforge/gpu/ops/rmsnorm_route.py.
#include "choose_experts.h"
#include "handover.h"
#include "output.h"
#include "packed.h"

#if !defined(THREADS) || !defined(PLACES) || !defined(ROUTER) || !defined(OUT)
#error "THREADS, PLACES, ROUTER and OUT have to be passed by the build"
#endif

struct RmsnormRouteArgs {
    const float* x;
    const float* norm;
    PackedMatrix router;
    const float* bias;
    u64* words;
    Output h;
    int columns;
    float eps;
    Choice choice;
};

using P = Packed<ROUTER>;
constexpr int kItems = 4;  // vectors that a thread holds; it loads others when it needs them

// What does not depend on x of the columns of vector i.
struct Weights {
    P::Unit router;
    float norm[P::kColumns];

    DEVICE void load(const RmsnormRouteArgs& a, int vector, int vectors) {
        if (vector >= vectors) return;
        router = P::load(a.router, static_cast<u64>(block_x()) * vectors + vector);
        UNROLL
        for (int i = 0; i < P::kColumns; i += 4) {
            float four[4];
            load_floats(a.norm + vector * P::kColumns + i, four);
            UNROLL
            for (int j = 0; j < 4; ++j) norm[i + j] = four[j];
        }
    }
};

struct Sums {
    float squares = 0.0f, product = 0.0f;

    DEVICE void add(const float* x, const Weights& weights, int vector, int vectors) {
        if (vector >= vectors) return;
        float w[P::kColumns];
        P::values(weights.router, w);
        UNROLL
        for (int i = 0; i < P::kColumns; i += 4) {
            float four[4];
            load_floats(x + vector * P::kColumns + i, four);
            UNROLL
            for (int j = 0; j < 4; ++j) {
                squares += four[j] * four[j];
                product += four[j] * weights.norm[i + j] * w[i + j];
            }
        }
    }
};

KERNEL_AHEAD(rmsnorm_route, RmsnormRouteArgs, THREADS) {
    SHARED float scratch[THREADS / WAVE];
    SHARED ChoiceLds<PLACES> lds;
    const int own = thread_x(), expert = block_x(), count = a.choice.count;
    const int vectors = a.columns / P::kColumns;
    Weights held[kItems];
    UNROLL
    for (int i = 0; i < kItems; ++i) held[i].load(a, own + i * THREADS, vectors);
    await_earlier();
    const u64 token = block_y(), start = token * a.columns;
    const float* const x = a.x + start;
    u64* const words = a.words + token * count;
    Sums sums;
    UNROLL
    for (int i = 0; i < kItems; ++i) sums.add(x, held[i], own + i * THREADS, vectors);
    for (int vector = own + kItems * THREADS; vector < vectors; vector += THREADS) {
        Weights more;
        more.load(a, vector, vectors);
        sums.add(x, more, vector, vectors);
    }
    const float mean = block_sum<THREADS>(sums.squares, scratch) / static_cast<float>(a.columns);
    const float factor = reciprocal_sqrt(mean + a.eps);
    const float product = block_sum<THREADS>(sums.product, scratch);
    const float score = factor * product + (a.bias ? a.bias[expert] : 0.0f);
    const bool chooses = expert == count - 1;
    if (own == 0 && !chooses) give_number(words + expert, score);

    const int groups = a.columns / kGroup;
    for (int first = expert; first < groups; first += count * (THREADS / kGroup)) {
        const int group = first + own / kGroup * count, column = group * kGroup + own % kGroup;
        const bool present = group < groups;
        const float h[1] = {present ? x[column] * factor * a.norm[column] : 0.0f};
        store_as<Dtype::OUT>(a.h, start + column, h, present);
    }
    if (!chooses) return;
    choose_experts(a.choice, own < expert ? await_number(words + own) : score, token, lds);
}
