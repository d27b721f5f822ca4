// The Python module rocmforge.cpu._cpu: the op table and packed weights, for backend.py alone.
//
// Arrays come as C-contiguous numpy arrays whose shapes backend.py and rocmforge.ops have checked;
// here only what would read or write out of bounds is checked again. Ops release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops.h"
#include "packed_matrix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace rocmforge {

namespace {

template <class T, int dims>
using Array = nb::ndarray<T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;
using Bias = std::optional<Array<const float, 1>>;
using Pages = nb::ndarray<nb::c_contig, nb::device::cpu>;  // float16, float32, or int8 of Q8_0

void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}
void require(bool ok, const char* op, const char* what) {
    if (!ok) throw std::invalid_argument(std::string(op) + ": " + what);
}

Format format_named(const std::string& name) {
    for (int i = 0; i < kFormats; ++i) {
        if (name == kFormatNames[i]) return static_cast<Format>(i);
    }
    throw std::invalid_argument("no CPU kernel for format " + name);
}

Activation activation_named(const std::string& name) {
    if (name == "silu") return Activation::Silu;
    if (name == "gelu") return Activation::Gelu;
    if (name == "clamped") return Activation::Clamped;
    throw std::invalid_argument("no CPU kernel for activation " + name);
}

// While an op runs: other Python threads may go on, but not into the same pool and workspace.
class Running {
  public:
    explicit Running(std::mutex& mutex) : lock_(mutex) {}

  private:
    nb::gil_scoped_release release_;  // first, so that nobody waits for the lock with the GIL
    std::lock_guard<std::mutex> lock_;
};

// Ops that ran, with their arguments: each can run again on what its arrays hold by then.
struct Recording {
    const void* owner;  // the Kernels that ran them
    std::vector<std::function<void()>> ops;
};

// Numbers to read for peak_reads: whole vectors of int32, each its index modulo 2^7.
class ReadBuffer {
  public:
    ReadBuffer(int64_t bytes, ThreadPool& pool) : buffer_(static_cast<size_t>(bytes)) {
        constexpr int64_t lap = 128 * sizeof(int32_t);
        int32_t words[128];
        for (int i = 0; i < 128; ++i) words[i] = i;
        parallel_for(pool, (bytes + lap - 1) / lap, kPieceFloats, [&](int64_t i) {
            std::memcpy(buffer_.data() + i * lap, words,
                        static_cast<size_t>(std::min(lap, bytes - i * lap)));
        });
    }
    size_t bytes() const { return buffer_.bytes(); }
    const uint8_t* data() const { return buffer_.data(); }

  private:
    HugeBuffer buffer_;
};

// The ops of one instruction set with a number of threads, and the memory that matmul works in.
class Kernels {
  public:
    Kernels(const std::string& isa, int threads)
        : ops_(isa.empty() ? best_ops() : ops_for(isa.c_str())),
          pool_(std::make_unique<ThreadPool>(threads)) {
        require(threads >= 1, "threads must be at least 1");
        if (!ops_)
            throw std::invalid_argument("this processor or build has no " + isa + " kernels");
    }

    const char* isa() const { return ops_->isa; }
    int threads() const { return pool_->threads(); }

    bool multiplies_pairs() const { return rocmforge::multiplies_pairs(*ops_); }

    std::unique_ptr<PackedMatrix> empty(const std::string& fmt, int64_t rows, int64_t columns,
                                        bool pairs) const {
        const Format format = format_named(fmt), packed = pairs ? Format::BF16_PAIRS : format;
        require(!pairs || multiplies_pairs(), "pack: this processor multiplies no pairs");
        require(rows >= 1 && columns >= 1 && ops_->row_bytes(format, columns) > 0,
                "pack: rows must be whole blocks, at least one");
        return std::make_unique<PackedMatrix>(ops_->tile_bytes(packed, columns), format, packed,
                                              rows, columns);
    }

    void pack(PackedMatrix& out, Array<const uint8_t, 2> raw, int64_t first_row,
              float factor) const {
        const auto rows = static_cast<int64_t>(raw.shape(0));
        check_row_bytes(raw, out.source(), out.columns());
        require(first_row >= 0 && first_row % kTileRows == 0 && first_row + rows <= out.rows(),
                "pack: rows must begin at a tile and lie inside the matrix");
        const Running running(mutex_);
        ops_->pack(raw.data(), out.source(), out.format(), rows, out.columns(), factor,
                   out.tile(first_row), *pool_);
    }

    void matmul(Array<const float, 2> x, const std::vector<const PackedMatrix*>& weights,
                const std::vector<Array<float, 2>>& outs, const std::vector<Bias>& biases,
                bool accumulate, float scale, bool exact) {
        require(weights.size() == outs.size() && weights.size() == biases.size(),
                "matmul: as many outs and biases as weights");
        std::vector<Target> targets;
        for (size_t i = 0; i < weights.size(); ++i) {
            require(weights[i] != nullptr, "matmul: a weight is None");
            require(!biases[i] || static_cast<int64_t>(biases[i]->shape(0)) == weights[i]->rows(),
                    "matmul: bias must be (rows,)");
            targets.push_back({weights[i], biases[i], outs[i]});
        }
        run_matmul("matmul", x, targets, {accumulate, scale, exact, std::nullopt});
    }

    void gate_up_swiglu(Array<const float, 2> x, const PackedMatrix& gate, const PackedMatrix& up,
                        const std::string& activation, Array<float, 2> out, bool exact) {
        run_matmul("gate_up_swiglu", x, {{&gate, std::nullopt, out}, {&up, std::nullopt, out}},
                   {false, 1.0f, exact, activation_named(activation)});
    }

    void expert_matmul(Array<const float, 2> x, const PackedMatrix& weight, const Bias& bias,
                       Array<const int32_t, 2> experts, int64_t count, Array<float, 2> out,
                       bool exact) {
        run_experts("expert_matmul", x, {{&weight, bias, out}}, experts, count,
                    {false, 1.0f, exact, std::nullopt});
    }

    void expert_gate_up_swiglu(Array<const float, 2> x, const PackedMatrix& gate,
                               const PackedMatrix& up, const Bias& gate_bias, const Bias& up_bias,
                               const std::string& activation, Array<const int32_t, 2> experts,
                               int64_t count, Array<float, 2> out, bool exact) {
        run_experts("expert_gate_up_swiglu", x, {{&gate, gate_bias, out}, {&up, up_bias, out}},
                    experts, count, {false, 1.0f, exact, activation_named(activation)});
    }

    void route(Array<const float, 2> scores, bool normalized, bool sigmoid, float scale,
               const Bias& bias, Array<int32_t, 2> experts, Array<float, 2> shares) {
        require(scores.shape(0) == experts.shape(0) && scores.shape(0) == shares.shape(0) &&
                    experts.shape(1) == shares.shape(1),
                "route: scores (T, E), experts (T, k) and shares (T, k) differ");
        require(experts.shape(1) >= 1 && experts.shape(1) <= scores.shape(1) &&
                    scores.shape(1) <= static_cast<size_t>(kMaxExperts),
                "route: 1 to E of at most 1024 experts");
        require(!bias || bias->shape(0) == scores.shape(1), "route: bias must be (E,)");
        run([this, scores, normalized, sigmoid, scale, bias, experts, shares] {
            ops_->route({scores.data(), static_cast<int64_t>(scores.shape(0)),
                         static_cast<int64_t>(scores.shape(1)),
                         static_cast<int64_t>(experts.shape(1)), normalized, sigmoid, scale,
                         bias ? bias->data() : nullptr, experts.data(), shares.data(), *pool_});
        });
    }

    void add_experts(Array<const float, 2> parts, Array<const float, 2> shares, Array<float, 2> x) {
        require(parts.shape(0) == x.shape(0) && shares.shape(0) == x.shape(0) &&
                    shares.shape(1) >= 1 && parts.shape(1) == shares.shape(1) * x.shape(1),
                "add_experts: parts (T, k * K), shares (T, k) and x (T, K) differ");
        run([this, parts, shares, x] {
            ops_->add_experts({parts.data(), shares.data(), static_cast<int64_t>(x.shape(0)),
                               static_cast<int64_t>(shares.shape(1)),
                               static_cast<int64_t>(x.shape(1)), x.data(), *pool_});
        });
    }

    void dequantize(Array<const uint8_t, 2> raw, const std::string& format, Array<float, 2> out) {
        require(raw.shape(0) == out.shape(0), "dequantize: rows differ");
        const Format f = format_named(format);
        check_row_bytes(raw, f, static_cast<int64_t>(out.shape(1)));
        run([this, raw, f, out] {
            ops_->dequantize(raw.data(), f, static_cast<int64_t>(out.shape(0)),
                             static_cast<int64_t>(out.shape(1)), out.data(), *pool_);
        });
    }

    void rmsnorm(Array<const float, 2> x, Array<const float, 1> weight, float eps,
                 Array<float, 2> out, bool accumulate) {
        run_norm("rmsnorm", ops_->rmsnorm, x, weight, std::nullopt, eps, out, accumulate);
    }

    void layernorm(Array<const float, 2> x, Array<const float, 1> weight, const Bias& bias,
                   float eps, Array<float, 2> out) {
        run_norm("layernorm", ops_->layernorm, x, weight, bias, eps, out, false);
    }

    void rope(Array<float, 3> x, Array<const float, 2> cos, Array<const float, 2> sin,
              bool interleaved) {
        require(cos.shape(0) == x.shape(0) && sin.shape(0) == x.shape(0) &&
                    cos.shape(1) == sin.shape(1) && 2 * cos.shape(1) <= x.shape(2),
                "rope: cos and sin must be (tokens, rotated / 2)");
        run([this, x, cos, sin, interleaved] {
            ops_->rope({x.data(), cos.data(), sin.data(), static_cast<int64_t>(x.shape(0)),
                        static_cast<int64_t>(x.shape(1)), static_cast<int64_t>(x.shape(2)),
                        2 * static_cast<int64_t>(cos.shape(1)), interleaved, *pool_});
        });
    }

    void softmax(Array<const float, 2> x, Array<float, 2> out) {
        require(x.shape(0) == out.shape(0) && x.shape(1) == out.shape(1) && x.shape(1) >= 1,
                "softmax: shapes differ");
        run([this, x, out] {
            ops_->softmax(x.data(), static_cast<int64_t>(x.shape(0)),
                          static_cast<int64_t>(x.shape(1)), out.data(), *pool_);
        });
    }

    void swiglu(Array<const float, 2> gate, Array<const float, 2> up, const std::string& activation,
                Array<float, 2> out) {
        require(gate.size() == up.size() && gate.size() == out.size(), "swiglu: shapes differ");
        run([this, gate, up, kind = activation_named(activation), out] {
            ops_->swiglu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), kind,
                         out.data(), *pool_);
        });
    }

    void gelu(Array<const float, 2> x, Array<float, 2> out) {
        require(x.size() == out.size(), "gelu: shapes differ");
        run([this, x, out] {
            ops_->gelu(x.data(), static_cast<int64_t>(x.size()), out.data(), *pool_);
        });
    }

    void softcap(Array<const float, 2> x, float cap, Array<float, 2> out) {
        require(x.size() == out.size() && cap > 0.0f, "softcap: shapes differ, or no positive cap");
        run([this, x, cap, out] {
            ops_->softcap(x.data(), static_cast<int64_t>(x.size()), cap, out.data(), *pool_);
        });
    }

    std::unique_ptr<ReadBuffer> read_buffer(int64_t bytes) const {
        require(bytes >= 64 && bytes % 64 == 0, "read_buffer: bytes must be a multiple of 64");
        const Running running(mutex_);
        return std::make_unique<ReadBuffer>(bytes, *pool_);
    }

    int64_t peak_reads(const ReadBuffer& buffer, int64_t repeats) const {
        const Running running(mutex_);
        return ops_->peak_reads(buffer.data(), static_cast<int64_t>(buffer.bytes()), repeats,
                                *pool_);
    }

    std::pair<int64_t, int64_t> peak_products(bool bytes) const {
        const Running running(mutex_);
        const PeakProducts made = ops_->peak_products(bytes, *pool_);
        return {made.count, made.sum};
    }

    void kv_append(Array<const float, 3> k, Array<const float, 3> v, const Pages& k_pages,
                   const Pages& v_pages, Array<const int32_t, 1> pages,
                   Array<const int32_t, 1> offsets) {
        // k_pages (n, G, D, P), v_pages (n, G, P, D); Q8_0 has D + D / 16 in the place of D
        check_pages(k_pages, v_pages);
        require(k.shape(1) == k_pages.shape(1) && k.shape(2) == head_dim(k_pages) &&
                    v.shape(1) == k.shape(1) && v.shape(2) == k.shape(2) &&
                    v.shape(0) == k.shape(0),
                "kv_append: k and v must be (tokens, kv heads, head dim)");
        require(pages.shape(0) == k.shape(0) && offsets.shape(0) == k.shape(0),
                "kv_append: one page and offset a token");
        run([this, k, v, k_pages, v_pages, pages, offsets] {
            const auto n_pages = static_cast<int32_t>(k_pages.shape(0));
            const auto page_size = static_cast<int32_t>(k_pages.shape(3));
            for (size_t t = 0; t < k.shape(0); ++t) {
                require(pages.data()[t] >= 0 && pages.data()[t] < n_pages &&
                            offsets.data()[t] >= 0 && offsets.data()[t] < page_size,
                        "kv_append: page or offset out of range");
            }
            ops_->kv_append({k.data(), v.data(), k_pages.data(), v_pages.data(), page_type(k_pages),
                             pages.data(), offsets.data(), static_cast<int64_t>(k.shape(0)),
                             static_cast<int64_t>(k.shape(1)), static_cast<int64_t>(k.shape(2)),
                             page_size});
        });
    }

    void attention(Array<const float, 3> q, const Pages& k_pages, const Pages& v_pages,
                   Array<const int32_t, 2> page_table, Array<const int32_t, 1> lengths,
                   Array<const int32_t, 1> starts, float scale, int64_t window, float softcap,
                   const Bias& sinks, Array<float, 3> out) {
        check_pages(k_pages, v_pages);
        require(window >= 0 && softcap >= 0.0f && (!sinks || sinks->shape(0) == q.shape(1)),
                "attention: window and soft cap must not be negative, sinks one a head");
        require(q.shape(2) == head_dim(k_pages) && q.shape(2) <= kMaxHeadDim,
                "attention: head dim differs");
        require(k_pages.shape(3) <= 64, "attention: page size must be at most 64");
        require(q.shape(1) % k_pages.shape(1) == 0, "attention: heads must divide into KV heads");
        require(out.size() == q.size(), "attention: out must have q's shape");
        const size_t sequences = lengths.shape(0);
        require(page_table.shape(0) == sequences && starts.shape(0) == sequences + 1,
                "attention: one page table row and start a sequence");
        run([this, q, k_pages, v_pages, page_table, lengths, starts, scale, window, softcap, sinks,
             out] {
            check_sequences(static_cast<int32_t>(q.shape(0)), k_pages, page_table, lengths, starts);
            ops_->attention(
                {q.data(), k_pages.data(), v_pages.data(), page_type(k_pages), page_table.data(),
                 lengths.data(), starts.data(), static_cast<int64_t>(lengths.shape(0)),
                 static_cast<int64_t>(page_table.shape(1)), static_cast<int64_t>(q.shape(1)),
                 static_cast<int64_t>(k_pages.shape(1)), static_cast<int64_t>(q.shape(2)),
                 static_cast<int64_t>(k_pages.shape(3)), scale, window, softcap,
                 sinks ? sinks->data() : nullptr, out.data(), *pool_});
        });
    }

    // Calls Python, and returns the ops that this thread ran meanwhile. It is one call, so that no
    // exception, Ctrl-C neither, leaves a recording open.
    std::unique_ptr<Recording> record(const nb::callable& calls) {
        require(!recording_, "one recording at a time");
        recording_ = std::make_unique<Recording>(Recording{this, {}});
        recorder_ = std::this_thread::get_id();
        try {
            calls();
        } catch (...) {
            recording_.reset();
            throw;
        }
        return std::move(recording_);
    }

    void replay(const Recording& recording) const {
        require(recording.owner == this, "replay: other kernels made this recording");
        const Running running(mutex_);
        for (const auto& op : recording.ops) op();
    }

  private:
    // Runs an op whose arguments are checked. It holds its arrays and matrices, and looks again at
    // what may have changed in them.
    template <class Op>
    void run(Op op) {
        {
            const Running running(mutex_);
            op();
        }
        if (recording_ && recorder_ == std::this_thread::get_id()) {
            recording_->ops.emplace_back(std::move(op));
        }
    }

    struct Target {
        const PackedMatrix* weight;
        Bias bias;
        Array<float, 2> out;
    };

    // How products are made, and what becomes of them.
    struct Product {
        bool accumulate;
        float scale;
        bool exact;
        std::optional<Activation> gated;
    };

    void run_norm(const char* op, void (*norm)(const NormArgs&), Array<const float, 2> x,
                  Array<const float, 1> weight, const Bias& bias, float eps, Array<float, 2> out,
                  bool accumulate) {
        require(x.shape(0) == out.shape(0) && x.shape(1) == out.shape(1) &&
                    weight.shape(0) == x.shape(1) && x.shape(1) >= 1 &&
                    (!bias || bias->shape(0) == x.shape(1)),
                op, "shapes differ");
        run([this, norm, x, weight, bias, eps, out, accumulate] {
            norm({x.data(), weight.data(), bias ? bias->data() : nullptr, eps,
                  static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)), accumulate,
                  out.data(), *pool_});
        });
    }

    void run_matmul(const char* op, Array<const float, 2> x, const std::vector<Target>& wanted,
                    const Product& product) {
        std::vector<MatmulTarget> targets;
        std::vector<nb::object> kept;  // the matrices, for as long as the op may run again
        for (const Target& target : wanted) {
            const PackedView view = target.weight->view();
            require(view.columns == static_cast<int64_t>(x.shape(1)), op, "columns differ");
            require(target.out.shape(0) == x.shape(0) &&
                        static_cast<int64_t>(target.out.shape(1)) == view.rows,
                    op, "out must be (tokens, rows)");
            kept.push_back(nb::find(target.weight));
            targets.push_back(
                {view, target.bias ? target.bias->data() : nullptr, target.out.data()});
        }
        run([this, x, wanted, targets, kept, product] {
            multiply({x.data(), static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)),
                      nullptr, targets.data(), static_cast<int>(targets.size()), product.accumulate,
                      product.scale, product.exact, product.gated ? &*product.gated : nullptr,
                      nullptr, *pool_});
        });
    }

    // out (T, k * N) of x (T, K), which all k read, or (T, k * K); with two weights their SwiGLU.
    void run_experts(const char* op, Array<const float, 2> x, const std::vector<Target>& wanted,
                     Array<const int32_t, 2> experts, int64_t count, const Product& product) {
        require(count >= 1 && count <= kMaxExperts, op, "1 to 1024 experts");
        const size_t tokens = experts.shape(0), chosen = experts.shape(1);
        std::vector<MatmulTarget> targets;
        std::vector<nb::object> kept;
        for (const Target& target : wanted) {
            const PackedView view = target.weight->view();
            const auto columns = static_cast<size_t>(view.columns);
            require(view.rows % count == 0 && view.rows / count % kTileRows == 0, op,
                    "each expert must have a multiple of 16 rows");
            require(chosen >= 1 && x.shape(0) == tokens &&
                        (x.shape(1) == columns || x.shape(1) == chosen * columns),
                    op, "x must be (tokens, columns) or (tokens, chosen * columns)");
            require(target.out.shape(0) == tokens &&
                        target.out.shape(1) == chosen * static_cast<size_t>(view.rows / count),
                    op, "out must be (tokens, chosen * rows of an expert)");
            require(!target.bias || static_cast<int64_t>(target.bias->shape(0)) == view.rows, op,
                    "bias must be (experts * rows,)");
            kept.push_back(nb::find(target.weight));
            targets.push_back(
                {view, target.bias ? target.bias->data() : nullptr, target.out.data()});
        }
        const int64_t columns = targets[0].weight.columns;
        const bool shared = static_cast<int64_t>(x.shape(1)) == columns;
        const ExpertRows rows{experts.data(), shared ? static_cast<int64_t>(chosen) : 1, count};
        run([this, op, x, wanted, experts, targets, kept, columns, rows, product] {
            for (size_t r = 0; r < experts.size(); ++r) {
                require(rows.experts[r] >= 0 && rows.experts[r] < rows.count, op,
                        "expert out of range");
            }
            multiply({x.data(), static_cast<int64_t>(experts.size()), columns, &rows,
                      targets.data(), static_cast<int>(targets.size()), product.accumulate,
                      product.scale, product.exact, product.gated ? &*product.gated : nullptr,
                      nullptr, *pool_});
        });
    }

    // With a workspace of its own, which grows.
    void multiply(MatmulArgs args) {
        const size_t need =
            ops_->matmul_workspace(args.tokens, args.columns, args.experts != nullptr, args.exact);
        if (!workspace_ || workspace_->bytes() < need) {
            workspace_.reset();
            workspace_ = std::make_unique<HugeBuffer>(need);
        }
        args.workspace = workspace_->data();
        ops_->matmul(args);
    }

    void check_row_bytes(const Array<const uint8_t, 2>& raw, Format format, int64_t columns) const {
        const int64_t wanted = ops_->row_bytes(format, columns);
        require(wanted > 0 && static_cast<int64_t>(raw.shape(1)) == wanted,
                "the bytes of a row do not fit its format and columns");
    }

    static PageType page_type(const Pages& pages) {
        const auto bits = pages.dtype().bits;
        return bits == 8 ? PageType::Q8_0 : bits == 16 ? PageType::F16 : PageType::F32;
    }

    static size_t head_dim(const Pages& k) {
        return page_type(k) == PageType::Q8_0 ? k.shape(2) / 17 * 16 : k.shape(2);
    }

    static void check_sequences(int32_t queries, const Pages& k_pages,
                                const Array<const int32_t, 2>& page_table,
                                const Array<const int32_t, 1>& lengths,
                                const Array<const int32_t, 1>& starts) {
        const size_t sequences = lengths.shape(0);
        require(starts.data()[0] == 0 && starts.data()[sequences] == queries,
                "attention: starts must run from 0 to the number of queries");
        const auto page_size = static_cast<int64_t>(k_pages.shape(3));
        for (size_t s = 0; s < sequences; ++s) {
            const int64_t own = int64_t{starts.data()[s + 1]} - starts.data()[s];
            const int64_t length = lengths.data()[s];
            const int64_t used = (length + page_size - 1) / page_size;
            require(own >= 0 && length >= own && used <= static_cast<int64_t>(page_table.shape(1)),
                    "attention: a sequence is longer than its pages or shorter than its queries");
            for (int64_t i = 0; i < used; ++i) {
                const int32_t page = page_table.data()[s * page_table.shape(1) + i];
                require(page >= 0 && page < static_cast<int32_t>(k_pages.shape(0)),
                        "attention: page out of range");
            }
        }
    }

    static void check_pages(const Pages& k, const Pages& v) {
        require(k.ndim() == 4 && v.ndim() == 4, "KV pages must have 4 dimensions");
        require(k.shape(0) == v.shape(0) && k.shape(1) == v.shape(1) && k.shape(2) == v.shape(3) &&
                    k.shape(3) == v.shape(2),
                "KV pages must be (n, G, D, P) and (n, G, P, D)");
        require(k.shape(1) >= 1 && k.shape(2) >= 1 && k.shape(3) >= 16 && k.shape(3) % 16 == 0,
                "KV pages need KV heads, dims, and a page size that is a multiple of 16");
        const auto is_of = [](const Pages& p, nb::dlpack::dtype_code code, int bits) {
            return p.dtype().code == static_cast<uint8_t>(code) && p.dtype().bits == bits;
        };
        const bool q8 = is_of(k, nb::dlpack::dtype_code::Int, 8);
        require(k.dtype() == v.dtype() && (q8 || is_of(k, nb::dlpack::dtype_code::Float, 16) ||
                                           is_of(k, nb::dlpack::dtype_code::Float, 32)),
                "KV pages must both be float16, float32 or int8");
        require(!q8 || k.shape(2) % 34 == 0, "KV pages of int8 must have 34 bytes for 32 dims");
    }

    const Ops* ops_;
    std::unique_ptr<ThreadPool> pool_;
    mutable std::mutex mutex_;
    std::unique_ptr<HugeBuffer> workspace_;
    std::unique_ptr<Recording> recording_;
    std::thread::id recorder_;
};

}  // namespace

}  // namespace rocmforge

NB_MODULE(_cpu, m) {
    using namespace rocmforge;
    m.doc() = "CPU kernels; use rocmforge.ops or rocmforge.cpu.backend.";
    m.def("instruction_sets", &instruction_sets,
          "The instruction sets that this build has and this processor runs, best first.");
    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix in the layout that matmul reads.")
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("columns", &PackedMatrix::columns)
        .def_prop_ro("nbytes", &PackedMatrix::nbytes)
        .def_prop_ro("format", &PackedMatrix::format_name);
    nb::class_<ReadBuffer>(m, "ReadBuffer", "What peak_reads reads.")
        .def_prop_ro("nbytes", &ReadBuffer::bytes);
    nb::class_<Recording>(m, "Recording", "Ops that ran, to be run again by Kernels.replay.");
    nb::class_<Kernels>(m, "Kernels", "The ops of one instruction set with a number of threads.")
        .def(nb::init<const std::string&, int>(), "isa"_a, "threads"_a)
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("threads", &Kernels::threads)
        .def_prop_ro("multiplies_pairs", &Kernels::multiplies_pairs)
        .def("empty", &Kernels::empty, "fmt"_a, "rows"_a, "columns"_a, "pairs"_a)
        .def("pack", &Kernels::pack, "out"_a, "raw"_a.noconvert(), "first_row"_a, "factor"_a)
        .def("matmul", &Kernels::matmul, "x"_a.noconvert(), "weights"_a, "outs"_a.noconvert(),
             "biases"_a.noconvert(), "accumulate"_a, "scale"_a, "exact"_a)
        .def("gate_up_swiglu", &Kernels::gate_up_swiglu, "x"_a.noconvert(), "gate"_a, "up"_a,
             "activation"_a, "out"_a.noconvert(), "exact"_a)
        .def("expert_matmul", &Kernels::expert_matmul, "x"_a.noconvert(), "weight"_a,
             "bias"_a.noconvert().none(), "experts"_a.noconvert(), "count"_a, "out"_a.noconvert(),
             "exact"_a)
        .def("expert_gate_up_swiglu", &Kernels::expert_gate_up_swiglu, "x"_a.noconvert(), "gate"_a,
             "up"_a, "gate_bias"_a.noconvert().none(), "up_bias"_a.noconvert().none(),
             "activation"_a, "experts"_a.noconvert(), "count"_a, "out"_a.noconvert(), "exact"_a)
        .def("route", &Kernels::route, "scores"_a.noconvert(), "normalized"_a, "sigmoid"_a,
             "scale"_a, "bias"_a.noconvert().none(), "experts"_a.noconvert(),
             "shares"_a.noconvert())
        .def("add_experts", &Kernels::add_experts, "parts"_a.noconvert(), "shares"_a.noconvert(),
             "x"_a.noconvert())
        .def("dequantize", &Kernels::dequantize, "raw"_a.noconvert(), "fmt"_a, "out"_a.noconvert())
        .def("rmsnorm", &Kernels::rmsnorm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
             "out"_a.noconvert(), "accumulate"_a)
        .def("layernorm", &Kernels::layernorm, "x"_a.noconvert(), "weight"_a.noconvert(),
             "bias"_a.noconvert().none(), "eps"_a, "out"_a.noconvert())
        .def("rope", &Kernels::rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(),
             "interleaved"_a)
        .def("softmax", &Kernels::softmax, "x"_a.noconvert(), "out"_a.noconvert())
        .def("swiglu", &Kernels::swiglu, "gate"_a.noconvert(), "up"_a.noconvert(), "activation"_a,
             "out"_a.noconvert())
        .def("gelu", &Kernels::gelu, "x"_a.noconvert(), "out"_a.noconvert())
        .def("softcap", &Kernels::softcap, "x"_a.noconvert(), "cap"_a, "out"_a.noconvert())
        .def("kv_append", &Kernels::kv_append, "k"_a.noconvert(), "v"_a.noconvert(),
             "k_pages"_a.noconvert(), "v_pages"_a.noconvert(), "pages"_a.noconvert(),
             "offsets"_a.noconvert())
        .def("attention", &Kernels::attention, "q"_a.noconvert(), "k_pages"_a.noconvert(),
             "v_pages"_a.noconvert(), "page_table"_a.noconvert(), "lengths"_a.noconvert(),
             "starts"_a.noconvert(), "scale"_a, "window"_a, "softcap"_a,
             "sinks"_a.noconvert().none(), "out"_a.noconvert())
        .def("record", &Kernels::record, "calls"_a)
        .def("replay", &Kernels::replay, "recording"_a)
        .def("read_buffer", &Kernels::read_buffer, "nbytes"_a)
        .def("peak_reads", &Kernels::peak_reads, "buffer"_a, "repeats"_a)
        .def("peak_products", &Kernels::peak_products, "int8"_a);
}
