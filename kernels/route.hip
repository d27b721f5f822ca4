// route: which experts each token goes to, and how much their results count (choose_experts.h).
//
//   scores   (T, E) float
//
// Threads: a block takes a token, a thread one expert. Grid (T).
// Limits: E at most THREADS.
// Launched by rocmforge/gpu/ops/experts.py.
#include "choose_experts.h"

#if !defined(THREADS)
#error "THREADS has to be passed by the build"
#endif

struct RouteArgs {
    const float* scores;
    Choice choice;
};

KERNEL(route, RouteArgs, THREADS) {
    SHARED ChoiceLds<THREADS> lds;
    const u64 token = block_x();
    const int own = thread_x(), count = a.choice.count;
    choose_experts(a.choice, own < count ? a.scores[token * count + own] : 0.0f, token, lds);
}
