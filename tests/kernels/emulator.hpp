// A GPU's blocks of threads on a CPU, enough of them for conv_*.cu: each thread is a fibre, and what
// threads do together (barriers, shuffles, products of matrices) waits until all have come to it.
// Copies in the background are done at once: no race is found here (emulated.py).
#include <csetjmp>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#define EMULATED
#define DEVICE inline
#define KERNEL_OF(threads, blocks) static void
#define SHARED uint4 *shared = emulator::memory.data();

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
struct dim3 { unsigned x, y, z; };

namespace emulator {
struct Meeting { int come = 0, generation = 0; };
struct Warp { Meeting meeting; uint32_t a[32][4], b[32][2]; float v[32]; const uint16_t *row[32]; };

constexpr size_t STACK = 256 << 10;
std::vector<uint4> memory;
struct Fibre { jmp_buf place; bool begun, done; };
std::vector<Fibre> fibres;
char *stacks;
std::vector<Warp> warps;
Meeting block;
jmp_buf scheduler;
int current, threads;
void (*body)(void *);
void *arguments;

// Fibres begin by setcontext and change places by longjmp: swapcontext asks the kernel each time.
inline void let_others() {
    if (!_setjmp(fibres[current].place)) _longjmp(scheduler, 1);
}
inline void meet(Meeting &m, int all) {
    const int mine = m.generation;
    if (++m.come == all) {
        m.come = 0, m.generation++;
        return;
    }
    while (m.generation == mine) let_others();
}
inline void start() {
    body(arguments);
    fibres[current].done = true;
    _longjmp(scheduler, 1);
}
inline void go_on() {
    Fibre &fibre = fibres[current];
    if (_setjmp(scheduler)) return;
    if (fibre.begun) _longjmp(fibre.place, 1);
    fibre.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + current * STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
    setcontext(&context);
}
inline void run_block() {
    for (Fibre &fibre : fibres) fibre.begun = fibre.done = false;
    for (int left = threads; left > 0;) {
        left = threads;
        for (current = 0; current < threads; current++) {
            if (!fibres[current].done) go_on();
            left -= fibres[current].done;
        }
    }
}
}  // namespace emulator

static dim3 blockIdx, gridDim;
#define threadIdx (dim3{unsigned(emulator::current), 0, 0})

inline void __syncthreads() { emulator::meet(emulator::block, emulator::threads); }
inline float __uint_as_float(unsigned v) { float f; std::memcpy(&f, &v, 4); return f; }
inline unsigned __float_as_uint(float v) { unsigned u; std::memcpy(&u, &v, 4); return u; }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline float erfinvf(float x) {  // Newton's method in double, from Winitzki's approximation
    const double log = std::log1p(-double(x) * x), half = 2 / (3.14159265358979 * 0.147) + log / 2;
    double y = std::copysign(std::sqrt(std::sqrt(half * half - log / 0.147) - half), x);
    for (int i = 0; i < 4; i++) y -= (std::erf(y) - x) * std::exp(y * y) * 0.886226925452758;
    return float(y);
}

inline unsigned rounded(float v) {  // to bf16, ties to even
    const unsigned u = __float_as_uint(v);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline unsigned pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
inline float tanh_of(float u) { return std::tanh(u); }
inline float at_least(float v, float bound) { return v < bound || bound != bound ? bound : v; }
inline unsigned lows(unsigned a, unsigned b) { return (a & 0xffff) | b << 16; }
inline unsigned highs(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }

template <int BYTES> void copy(void *to, const void *from) {
    if (uintptr_t(to) % BYTES || uintptr_t(from) % BYTES) std::abort();  // as the GPU would
    std::memcpy(to, from, BYTES);
}
inline void end_group() {}
template <int N> void wait_groups() {}

inline emulator::Warp &warp() { return emulator::warps[emulator::current / 32]; }

inline float sum_over_columns(float v) {
    emulator::Warp &w = warp();
    const int lane = emulator::current % 32;
    w.v[lane] = v;
    emulator::meet(w.meeting, 32);
    float sum = 0;
    for (int g = 0; g < 8; g++) sum += w.v[4 * g + lane % 4];
    emulator::meet(w.meeting, 32);
    return sum;
}
inline void matrices(unsigned (&v)[4], const uint16_t *row, bool transposed) {
    emulator::Warp &w = warp();
    const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
    if (uintptr_t(row) % 16) std::abort();
    w.row[lane] = row;
    emulator::meet(w.meeting, 32);
    for (int i = 0; i < 4; i++) {
        auto at = [&](int k) {
            return unsigned(transposed ? w.row[8 * i + 2 * t + k][g] : w.row[8 * i + g][2 * t + k]);
        };
        v[i] = at(0) | at(1) << 16;
    }
    emulator::meet(w.meeting, 32);
}
inline void load_matrices(unsigned (&v)[4], const uint16_t *row) { matrices(v, row, false); }
inline void load_transposed(unsigned (&v)[4], const uint16_t *row) { matrices(v, row, true); }

// The layout of mma.m16n8k16 as PTX's manual gives it.
inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::Warp &w = warp();
    const int lane = emulator::current % 32;
    std::memcpy(w.a[lane], a, 16);
    w.b[lane][0] = b0, w.b[lane][1] = b1;
    emulator::meet(w.meeting, 32);
    auto half = [](unsigned v, int which) {
        return __uint_as_float(which ? v & 0xffff0000u : v << 16);
    };
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 16; k++) {
            const unsigned left = w.a[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
            const unsigned right = w.b[column * 4 + k % 8 / 2][k / 8];
            c[i] += half(left, k % 2) * half(right, k % 2);
        }
    }
    emulator::meet(w.meeting, 32);
}

namespace emulator {
template <class... A, size_t... I>
void call(void (*kernel)(A...), void **given, std::index_sequence<I...>) {
    kernel(*(A *)given[I]...);
}
// As cuLaunchKernel: addresses of the arguments.
template <class... A>
void launch(void (*kernel)(A...), const int *grid, int block_size, int shared_bytes, void **given) {
    struct Job { void (*kernel)(A...); void **given; } job{kernel, given};
    body = [](void *p) {
        Job &j = *(Job *)p;
        call(j.kernel, j.given, std::index_sequence_for<A...>());
    };
    arguments = &job;
    threads = block_size;
    fibres.resize(threads);
    const std::unique_ptr<char[]> room(new char[threads * STACK]);  // touched where it is needed
    stacks = room.get();
    gridDim = {unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2])};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                memory.assign((shared_bytes + 15) / 16, {0x7fc07fc0u, 0x7fc07fc0u, 0x7fc07fc0u, 0x7fc07fc0u});
                warps.assign(threads / 32, {});
                block = {};
                run_block();
            }
}
}  // namespace emulator
