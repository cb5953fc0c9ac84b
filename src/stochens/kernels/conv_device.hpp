// Products of the tensor cores and copies to shared memory, as PTX has them; for a CPU, the tests'
// emulator.hpp has them.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED extern __shared__ uint4 shared[];

// c += a b, with a [16, 16], b [16, 8], c [16, 8]: rows lane / 4 and 8 more, columns 2 (lane % 4)
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8x8 matrices of bf16 in shared memory: lane 8 i + j gives the address of row j of the i-th
// and gets of each its elements (lane / 4, 2 (lane % 4)) and the next; or of the transposed ones.
DEVICE void load_matrices(u32 (&v)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
DEVICE void load_transposed(u32 (&v)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
DEVICE float tanh_of(float u) {  // one operation of the special-function unit; error 2^-11
    float tanh;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tanh) : "f"(u));
    return tanh;
}
DEVICE float at_least(float v, float bound) {  // fmaxf would make a number of what is none
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(v), "f"(bound));
    return larger;
}
DEVICE float sum_over_columns(float v) {  // the 8 lanes that have the same channels
    for (int m = 4; m < 32; m *= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}
// Copies to shared memory that go on in the background, and the wait until all but the last `n`
// groups of them have come.
template <int BYTES> DEVICE void copy(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                     (u32)__cvta_generic_to_shared(to)),
                 "l"(from), "n"(BYTES));
}
DEVICE void end_group() { asm volatile("cp.async.commit_group;"); }
template <int N> DEVICE void wait_groups() {  // nothing is read ahead of it
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
DEVICE u32 lows(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
DEVICE u32 highs(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }
#endif

DEVICE float low(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
