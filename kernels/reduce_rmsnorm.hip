// reduce_rmsnorm: out = RMSNorm of the sum of all ranks' x on all of them, for many tokens
// (prompts). Each rank, the owner of some tokens, adds up what the others have of these, and gives
// them the norm alone: x is whole with its owner only.
//
//   x     (T, K) float, aligned to 16: the owner's becomes the sum, rank 0's added first
//   norm  (K,) float, aligned to 16
//   out   (T, K) f16, aligned to 16, kept finite
//
// Rank r owns the tokens from T * r / ranks on. They travel as peers.h says, in half an inbox first
// x of the owner's tokens, (ranks - 1, most tokens of an owner, K) f16 by sender, then the norms
// (T, K) f16, then what each row of the former is multiplied by, float; flags (ranks, flags) u32 by
// sender: of each of the owner's tokens, then of each of the sender's. A row is scaled by a power
// of two so that its largest number is near f16's.
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

constexpr int kEight = 8, kLine = THREADS * kEight;  // columns of a thread, of a block

DEVICE void load_eight(const float* from, float (&to)[kEight]) {
    float four[2][4];
    load_floats(from, four[0]);
    load_floats(from + 4, four[1]);
    UNROLL
    for (int i = 0; i < kEight; ++i) to[i] = four[i / 4][i % 4];
}
DEVICE void load_eight(const f16* from, float scale, float (&to)[kEight]) {
    const u32x4 four = load<u32x4>(from);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    UNROLL
    for (int i = 0; i < kEight; ++i) {
        to[i] = scale * (i % 2 ? high_half(words[i / 2]) : low_half(words[i / 2]));
    }
}
DEVICE void store_eight(float* to, const float (&from)[kEight]) {
    const float low[4] = {from[0], from[1], from[2], from[3]};
    const float high[4] = {from[4], from[5], from[6], from[7]};
    store_floats(to, low);
    store_floats(to + 4, high);
}
DEVICE void store_eight(f16* to, const float (&from)[kEight]) {
    uint32_t words[4];
    UNROLL
    for (int i = 0; i < 4; ++i) {
        words[i] = pack_halves(clamp_to_f16(from[2 * i]), clamp_to_f16(from[2 * i + 1]));
    }
    *reinterpret_cast<u32x4*>(to) = {words[0], words[1], words[2], words[3]};
}

// A power of two that brings a row's largest number to 2^14 at least and below 2^15.
struct RowScale {
    int exponent;

    DEVICE explicit RowScale(float largest) {
        const int found = 268 - static_cast<int>(bit_cast<uint32_t>(largest) >> 23);
        exponent = maximum(1, minimum(found, 253));
    }
    DEVICE float up() const { return bit_cast<float>(static_cast<uint32_t>(exponent) << 23); }
    DEVICE float down() const {
        return bit_cast<float>(static_cast<uint32_t>(254 - exponent) << 23);
    }
};

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
    DEVICE int part_row(int rank, int sender, int token) const {
        return (sender - (sender > rank)) * share() + token - first(rank);
    }
    DEVICE f16* row(int rank, int at) const {
        return reinterpret_cast<f16*>(half(rank)) + static_cast<u64>(at) * a.columns;
    }
    DEVICE f16* part(int rank, int sender, int token) const {
        return row(rank, part_row(rank, sender, token));
    }
    DEVICE int parts() const { return (a.peers.ranks - 1) * share(); }
    DEVICE f16* norm(int rank, int token) const { return row(rank, parts() + token); }
    DEVICE float* scale(int rank, int sender, int token) const {
        float* const scales = reinterpret_cast<float*>(row(rank, parts() + a.tokens));
        return scales + part_row(rank, sender, token);
    }
    DEVICE uint32_t* part_flag(int rank, int sender, int token) const {
        return arrived(a.peers, rank, sender) + token - first(rank);
    }
    DEVICE uint32_t* norm_flag(int rank, int sender, int token) const {
        return arrived(a.peers, rank, sender) + share() + token - first(sender);
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
    // All threads must call.
    DEVICE void send(int owner, int token, float* scratch) const {
        const float* const from = a.x + static_cast<u64>(token) * a.columns;
        float largest = 0.0f;
        for (int k = thread_x() * kEight; k < a.columns; k += kLine) {
            float x[kEight];
            load_eight(from + k, x);
            UNROLL
            for (int j = 0; j < kEight; ++j) largest = maximum(largest, x[j] < 0.0f ? -x[j] : x[j]);
        }
        const RowScale row_scale(block_max<THREADS>(largest, scratch));
        const float up = row_scale.up();
        f16* const there = part(owner, a.peers.rank, token);
        for (int k = thread_x() * kEight; k < a.columns; k += kLine) {
            float x[kEight];
            load_eight(from + k, x);
            UNROLL
            for (int j = 0; j < kEight; ++j) x[j] *= up;
            store_eight(there + k, x);
        }
        if (thread_x() == 0) *scale(owner, a.peers.rank, token) = row_scale.down();
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
        for (int k = thread_x() * kEight; k < a.columns; k += kLine) {
            float sum[kEight] = {};
            for (int rank = 0; rank < peers.ranks; ++rank) {
                float more[kEight];
                if (rank == peers.rank) {
                    load_eight(x + k, more);
                } else {
                    const float down = *scale(peers.rank, rank, token);
                    load_eight(part(peers.rank, rank, token) + k, down, more);
                }
                UNROLL
                for (int j = 0; j < kEight; ++j) sum[j] = rank == 0 ? more[j] : sum[j] + more[j];
            }
            UNROLL
            for (int j = 0; j < kEight; ++j) squares += sum[j] * sum[j];
            store_eight(x + k, sum);
        }
        const float mean = block_sum<THREADS>(squares, scratch) / static_cast<float>(a.columns);
        const float inverse = reciprocal_sqrt(mean + a.eps);
        for (int k = thread_x() * kEight; k < a.columns; k += kLine) {
            float y[kEight], weight[kEight];
            load_eight(x + k, y);
            load_eight(a.norm + k, weight);
            UNROLL
            for (int j = 0; j < kEight; ++j) y[j] *= inverse * weight[j];
            store_eight(a.out + static_cast<u64>(token) * a.columns + k, y);
            for (int rank = 0; rank < peers.ranks; ++rank) {
                if (rank != peers.rank) store_eight(norm(rank, token) + k, y);
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
        for (int k = thread_x() * kEight; k < a.columns; k += kLine) {
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
    const auto send = [&](int owner, int token) { call.send(owner, token, scratch); };
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
