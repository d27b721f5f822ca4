// The stand-in's hiprtc: gives the kernel file and its headers to the machine's C++ compiler. The
// code object is a shared library's bytes. It knows no kernel.
//
// STANDIN_CXX names the compiler. A build with AddressSanitizer compiles kernels with it as well.
// STANDIN_VERSION follows from this file and the build's flags, so that caches of compiled kernels
// keep what was made in different ways apart.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "calls.h"

namespace fs = std::filesystem;
using namespace standin;

namespace {

// The values of hiprtcResult.
enum Result {
    kSuccess = 0,
    kProgramCreationFailure = 2,
    kInvalidInput = 3,
    kInvalidProgram = 4,
    kCompilation = 6,
};

struct Program {
    std::string source, name, log, code;
    std::map<std::string, std::string> headers;
};

std::set<Program*> programs;
std::mutex programs_mutex;

bool known(Program* program) {
    const std::lock_guard guard(programs_mutex);
    return programs.count(program);
}

std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Runs a command in a folder, its output in the folder's file `log`; returns whether it succeeded.
bool execute(const std::vector<std::string>& command, const std::string& folder) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    // The compiler must not run under a sanitizer that was preloaded for us.
    std::vector<char*> environment;
    for (char** entry = environ; *entry; ++entry) {
        if (std::strncmp(*entry, "LD_PRELOAD=", 11)) environment.push_back(*entry);
    }
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    posix_spawn_file_actions_addopen(&actions, 1, "log", O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child;
    const int failed =
        posix_spawnp(&child, words[0], &actions, nullptr, words.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    int status = 1;
    pid_t ended = -1;
    while (!failed && (ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) continue;
    if (failed || ended != child) {
        std::ofstream(folder + "/log", std::ios::app)
            << command[0] << ": " << std::strerror(failed) << "\n";
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The compiler's command; what only a GPU's compiler takes is left out. Empty: no architecture.
std::vector<std::string> command_of(const std::vector<std::string>& options,
                                    const std::string& input) {
    const char* compiler = std::getenv("STANDIN_CXX");
    std::vector<std::string> command = {compiler ? compiler : "c++",
                                        "-x",
                                        "c++",
                                        "-fPIC",
                                        "-shared",
                                        "-fvisibility=hidden",
                                        "-fno-gnu-unique",
                                        "-DROCMFORGE_HOST"};
#if defined(STANDIN_ASAN)
    command.insert(command.end(),
                   {"-fsanitize=address,alignment,bounds,integer-divide-by-zero,shift-exponent,"
                    "signed-integer-overflow",
                    "-fno-sanitize-recover=all", "-g1"});
#endif
    const std::string target = "--offload-arch=";
    bool has_target = false;
    for (const std::string& option : options) {
        if (option.rfind(target, 0) == 0) {
            has_target = true;
            const std::string name = option.substr(target.size());
            command.push_back("-DSTANDIN_ARCHITECTURE=\"" + name + "\"");
        } else if (option.rfind("-O", 0) != 0) {
            command.push_back(option);
        }
    }
    if (!has_target) return {};
    // -O1 compiles fast and runs fast enough.
    command.insert(command.end(), {"-O1", "-o", "code", input});
    return command;
}

}  // namespace

ENTRY Result hiprtcVersion(int* major, int* minor) {
    count_call("hiprtcVersion");
    *major = 0;
    *minor = STANDIN_VERSION;
    return kSuccess;
}

ENTRY Result hiprtcCreateProgram(Program** out, const char* source, const char* name, int count,
                                 const char** headers, const char** names) {
    count_call("hiprtcCreateProgram");
    if (source == nullptr || count < 0) return kInvalidInput;
    auto* program = new Program;
    program->source = source;
    program->name = name ? name : "kernel";
    for (int i = 0; i < count; ++i) program->headers[names[i]] = headers[i];
    const std::lock_guard guard(programs_mutex);
    programs.insert(program);
    *out = program;
    return kSuccess;
}

ENTRY Result hiprtcDestroyProgram(Program** program) {
    count_call("hiprtcDestroyProgram");
    const std::lock_guard guard(programs_mutex);
    if (program == nullptr || !programs.erase(*program)) return kInvalidProgram;
    delete *program;
    *program = nullptr;
    return kSuccess;
}

ENTRY Result hiprtcCompileProgram(Program* program, int count, const char** options) {
    count_call("hiprtcCompileProgram");
    if (!known(program)) return kInvalidProgram;
    std::string folder = (fs::temp_directory_path() / "standin-hiprtc-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return kProgramCreationFailure;
    const fs::path root = folder, input = fs::path(program->name).filename();
    for (const auto& [name, text] : program->headers) {
        fs::create_directories((root / name).parent_path());
        std::ofstream(root / name, std::ios::binary) << text;
    }
    std::ofstream(root / input, std::ios::binary)
        << program->source
        << "\nextern \"C\" __attribute__((visibility(\"default\"))) "
           "const char standin_architecture[] = STANDIN_ARCHITECTURE;\n";
    const std::vector<std::string> command = command_of({options, options + count}, input);
    bool compiled = false;
    if (command.empty()) {
        program->log = "no --offload-arch among the options\n";
    } else {
        compiled = execute(command, folder);
        program->log = read(root / "log");
    }
    if (compiled) program->code = read(root / "code");
    fs::remove_all(root);
    return compiled ? kSuccess : kCompilation;
}

ENTRY Result hiprtcGetProgramLogSize(Program* program, size_t* bytes) {
    count_call("hiprtcGetProgramLogSize");
    if (!known(program)) return kInvalidProgram;
    *bytes = program->log.size() + 1;
    return kSuccess;
}

ENTRY Result hiprtcGetProgramLog(Program* program, char* log) {
    count_call("hiprtcGetProgramLog");
    if (!known(program)) return kInvalidProgram;
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return kSuccess;
}

ENTRY Result hiprtcGetCodeSize(Program* program, size_t* bytes) {
    count_call("hiprtcGetCodeSize");
    if (!known(program)) return kInvalidProgram;
    *bytes = program->code.size();
    return kSuccess;
}

ENTRY Result hiprtcGetCode(Program* program, char* code) {
    count_call("hiprtcGetCode");
    if (!known(program)) return kInvalidProgram;
    std::memcpy(code, program->code.data(), program->code.size());
    return kSuccess;
}

ENTRY const char* hiprtcGetErrorString(Result result) {
    count_call("hiprtcGetErrorString");
    switch (result) {
        case kSuccess:
            return "HIPRTC_SUCCESS";
        case kProgramCreationFailure:
            return "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE";
        case kInvalidInput:
            return "HIPRTC_ERROR_INVALID_INPUT";
        case kInvalidProgram:
            return "HIPRTC_ERROR_INVALID_PROGRAM";
        case kCompilation:
            return "HIPRTC_ERROR_COMPILATION";
    }
    return "unknown error";
}

ENTRY long standin_rtc_calls(const char* name) {
    return calls_of(name);
}
