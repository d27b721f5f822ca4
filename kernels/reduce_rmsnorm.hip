// reduce_rmsnorm: out = RMSNorm of the sum of all ranks' x on all of them, for many tokens
// (prompts). Each rank, the owner of some tokens, adds up what the others have of these, and gives
// them the norm alone: x is whole with its owner only.
//
//   x     (T, K) float, aligned to 16: the owner's becomes the sum, rank 0's added first
//   norm  (K,) float, aligned to 16
//   out   (T, K) f16, aligned to 16, kept finite
//
// Rank r owns the tokens from T * r / ranks on. They travel as peers.h says, in half an inbox
// first x of the owner's tokens, (ranks - 1, most tokens of an owner, K) float by sender, then the
// norms (T, K) f16; flags (ranks, room / CHUNK) u32 by sender: of each of the owner's tokens, then
// of each of the sender's.
// Threads: a block takes every blocks-th token of each owner, one of each in a round. It sends
// those of the others a round ahead, adds and norms its own, and takes the others' norms a round
// later. Grid (blocks). The launches of all ranks wait for each other: they must be able to run at
// the same time. Limits: K a multiple of 8; what travels fits (rocmforge/gpu/ops/reduce_rmsnorm.py,
// which launches it).
#include "output.h"
#include "peers.h"

struct ReduceRmsnormArgs {
    float* x;
    const float* norm;
    f16* out;
    int tokens;
    int columns;
    float eps;
    int blocks;  // of the grid
    Peers peers;
};

constexpr int kVector = 4, kLine = THREADS * kVector;  // of floats; of f16 twice as many

struct Call {
    const ReduceRmsnormArgs& a;
    uint32_t number;

    DEVICE int first(int owner) const { return a.tokens * owner / a.peers.ranks; }
    DEVICE int share() const { return (a.tokens + a.peers.ranks - 1) / a.peers.ranks; }
    DEVICE float* half(int rank) const {
        const u64 of = static_cast<u64>(number % 2) * a.peers.ranks * a.peers.room;
        return static_cast<float*>(a.peers.inboxes[rank]) + of;
    }
    // What a sender has of an owner's token, with the owner.
    DEVICE float* part(int rank, int sender, int token) const {
        const int at = (sender - (sender > rank)) * share() + token - first(rank);
        return half(rank) + static_cast<u64>(at) * a.columns;
    }
    DEVICE f16* norm(int rank, int token) const {
        const u64 behind = static_cast<u64>(a.peers.ranks - 1) * share() * a.columns;
        return reinterpret_cast<f16*>(half(rank) + behind) + static_cast<u64>(token) * a.columns;
    }
    DEVICE uint32_t* part_flag(int rank, int sender, int token) const {
        return flags(rank, sender) + token - first(rank);
    }
    DEVICE uint32_t* norm_flag(int rank, int sender, int token) const {
        return flags(rank, sender) + share() + token - first(sender);
    }
    DEVICE uint32_t* flags(int rank, int sender) const {
        return arrived(a.peers, rank) + sender * (a.peers.room / CHUNK);
    }
    DEVICE void await(const uint32_t* flag) const {
        wait_for(a.peers, [&] {  // the other one may be a call ahead
            return static_cast<int32_t>(load_shared(flag) - number) >= 0;
        });
    }

    // The block's token of an owner in a round, or none: -1.
    DEVICE int token(int owner, int round) const {
        const int found = first(owner) + block_x() + round * a.blocks;
        return found < first(owner + 1) ? found : -1;
    }
    // Calls f(owner, token) for those of the others.
    template <class Function>
    DEVICE void each_other(int round, const Function& f) const {
        for (int rank = 0; rank < a.peers.ranks; ++rank) {
            if (rank != a.peers.rank && token(rank, round) >= 0) f(rank, token(rank, round));
        }
    }
    DEVICE void send(int owner, int token) const {
        const float* const from = a.x + static_cast<u64>(token) * a.columns;
        float* const there = part(owner, a.peers.rank, token);
        for (int k = thread_x() * kVector; k < a.columns; k += kLine) {
            *reinterpret_cast<u32x4*>(there + k) = load<u32x4>(from + k);
        }
    }
    // All threads must call.
    DEVICE void add(int token, float* scratch) const {
        const Peers& peers = a.peers;
        if (thread_x() == 0) {
            for (int rank = 0; rank < peers.ranks; ++rank) {
                if (rank != peers.rank) await(part_flag(peers.rank, rank, token));
            }
        }
        take_over();
        float* const x = a.x + static_cast<u64>(token) * a.columns;
        float squares = 0.0f;
        for (int k = thread_x() * kVector; k < a.columns; k += kLine) {
            float sum[kVector] = {};
            for (int rank = 0; rank < peers.ranks; ++rank) {
                float more[kVector];
                load_floats((rank == peers.rank ? x : part(peers.rank, rank, token)) + k, more);
                UNROLL
                for (int j = 0; j < kVector; ++j) sum[j] = rank == 0 ? more[j] : sum[j] + more[j];
            }
            UNROLL
            for (int j = 0; j < kVector; ++j) squares += sum[j] * sum[j];
            store_floats(x + k, sum);
        }
        const float mean = block_sum<THREADS>(squares, scratch) / static_cast<float>(a.columns);
        const float inverse = reciprocal_sqrt(mean + a.eps);
        for (int k = thread_x() * kVector; k < a.columns; k += kLine) {
            float y[kVector], weight[kVector];
            load_floats(x + k, y);
            load_floats(a.norm + k, weight);
            UNROLL
            for (int j = 0; j < kVector; ++j) y[j] *= inverse * weight[j];
            for (int rank = 0; rank < peers.ranks; ++rank) {
                f16* const to = rank == peers.rank ? a.out + static_cast<u64>(token) * a.columns
                                                   : norm(rank, token);
                store_as<Dtype::F16>({to, nullptr, nullptr}, k, y, true);
            }
        }
    }
    // Tells the others of what was sent in a round, and of norms in another. All threads must call.
    DEVICE void tell(int sent, int normed) const {
        publish();
        if (thread_x() != 0) return;
        const int self = a.peers.rank, own = token(self, normed);
        each_other(sent, [&](int owner, int token) {
            store_shared(part_flag(owner, self, token), number);
        });
        for (int rank = 0; rank < a.peers.ranks && own >= 0; ++rank) {
            if (rank != self) store_shared(norm_flag(rank, self, own), number);
        }
    }
    // All threads must call.
    DEVICE void take(int owner, int token) const {
        const int rank = a.peers.rank;
        if (thread_x() == 0) await(norm_flag(rank, owner, token));
        take_over();
        const f16* const from = norm(rank, token);
        f16* const to = a.out + static_cast<u64>(token) * a.columns;
        for (int k = thread_x() * 2 * kVector; k < a.columns; k += 2 * kLine) {
            *reinterpret_cast<u32x4*>(to + k) = load<u32x4>(from + k);
        }
    }
};

KERNEL_RESIDENT(reduce_rmsnorm, ReduceRmsnormArgs, THREADS, BLOCKS) {
    SHARED float scratch[THREADS / WAVE];
    SHARED uint32_t word;
    await_earlier();
    const Call call{a, a.peers.calls[0] + 1};
    const int rounds = (call.share() + a.blocks - 1) / a.blocks;
    const auto send = [&](int owner, int token) { call.send(owner, token); };
    const auto take = [&](int owner, int token) { call.take(owner, token); };
    call.each_other(0, send);
    call.tell(0, rounds);
    for (int round = 0; round < rounds; ++round) {
        call.each_other(round + 1, send);
        const int own = call.token(a.peers.rank, round);
        if (own >= 0) call.add(own, scratch);
        call.tell(round + 1, round);
        if (round > 0) call.each_other(round - 1, take);
    }
    call.each_other(rounds - 1, take);
    end_call(a.peers, call.number, a.blocks, &word);
}
