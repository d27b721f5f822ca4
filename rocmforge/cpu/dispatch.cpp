// Chooses the op table for this processor.
//
// Compiled without any instruction-set flag, since it runs on processors that lack them. It knows
// what each set needs of the processor, and nothing of the ops.
#if defined(ROCMFORGE_X86)
#include <cpuid.h>
#endif

#include <cstring>

#include "ops.h"

namespace rocmforge {

namespace portable {
extern const Ops table;
}

#ifdef ROCMFORGE_X86
namespace avx2 {
extern const Ops table;
}
#ifdef ROCMFORGE_AVXVNNI
namespace avxvnni {
extern const Ops table;
}
#endif
namespace avx512 {
extern const Ops table;
}
#endif

namespace {

struct Candidate {
    const Ops* ops;
    bool supported;
};

// The op tables that this processor runs, best first.
std::vector<const Ops*> supported() {
#ifdef ROCMFORGE_X86
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni");
    const Candidate candidates[] = {
        {&avx512::table, has_avx512},
#ifdef ROCMFORGE_AVXVNNI
        {&avxvnni::table, has_avx2 && __builtin_cpu_supports("avxvnni")},
#endif
        {&avx2::table, has_avx2},
        {&portable::table, true}};
#else
    const Candidate candidates[] = {{&portable::table, true}};
#endif
    std::vector<const Ops*> found;
    for (const Candidate& c : candidates) {
        if (c.supported) found.push_back(c.ops);
    }
    return found;
}

// Zen 4 is what has AVX-512 in AMD's family 19h; old compilers know neither by name.
bool is_zen4() {
#ifdef ROCMFORGE_X86
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx) || ecx != signature_AMD_ecx) return false;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
    const unsigned family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
    __builtin_cpu_init();
    return family == 0x19 && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

}  // namespace

const bool kIsZen4 = is_zen4();

const Ops* ops_for(const char* isa) {
    for (const Ops* ops : supported()) {
        if (std::strcmp(ops->isa, isa) == 0) return ops;
    }
    return nullptr;
}

bool multiplies_pairs([[maybe_unused]] const Ops& ops) {
#ifdef ROCMFORGE_X86
    return &ops == &avx512::table && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Ops* ops : supported()) names.emplace_back(ops->isa);
    return names;
}

const Ops* best_ops() {
    return supported().front();
}

}  // namespace rocmforge
