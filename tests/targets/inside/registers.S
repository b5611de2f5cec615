/* turn(before, after, turns, other): puts a pattern into every register there is, counts
   down, and stores them all: for a thread that is led elsewhere meanwhile. */

#if defined(__AVX512F__)
#define LOAD(n) vmovdqu64 n*64(%rdi), %zmm##n
#define STORE(n) vmovdqu64 %zmm##n, n*64(%rsi)
#elif defined(__AVX__)
#define LOAD(n) vmovdqu n*64(%rdi), %ymm##n
#define STORE(n) vmovdqu %ymm##n, n*64(%rsi)
#else
#define LOAD(n) movdqu n*64(%rdi), %xmm##n
#define STORE(n) movdqu %xmm##n, n*64(%rsi)
#endif
#define EACH(X) X(0); X(1); X(2); X(3); X(4); X(5); X(6); X(7); \
  X(8); X(9); X(10); X(11); X(12); X(13); X(14); X(15)
#define UPPER(X) X(16); X(17); X(18); X(19); X(20); X(21); X(22); X(23); \
  X(24); X(25); X(26); X(27); X(28); X(29); X(30); X(31)

  .text
  .globl turn
  .type turn, @function
turn:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  stmxcsr (%rcx)
  fnstcw 4(%rcx)
  ldmxcsr 8(%rcx)
  fldcw 12(%rcx)
  fldpi
  fldl2e
  EACH(LOAD)
#if defined(__AVX512F__)
  UPPER(LOAD)
  kmovw (%rdi), %k1
  kmovw 8(%rdi), %k7
#endif
  mov $0x11, %eax
  mov $0x22, %ebx
  mov $0x33, %ebp
  mov $0x44, %r8d
  mov $0x55, %r9d
  mov $0x66, %r10d
  mov $0x77, %r11d
  mov $0x88, %r12d
  mov $0x99, %r13d
  mov $0xaa, %r14d
  mov $0xbb, %r15d
  /* The red zone, which is the function's own though the stack pointer is above. */
  mov %r8, -8(%rsp)
  mov %r9, -64(%rsp)
  mov %r10, -128(%rsp)
  std
1:
  dec %rdx
  jnz 1b
  mov %rax, 16(%rcx)
  mov %rbx, 24(%rcx)
  mov %rbp, 32(%rcx)
  mov %r8, 40(%rcx)
  mov %r9, 48(%rcx)
  mov %r10, 56(%rcx)
  mov %r11, 64(%rcx)
  mov %r12, 72(%rcx)
  mov %r13, 80(%rcx)
  mov %r14, 88(%rcx)
  mov %r15, 96(%rcx)
  mov -8(%rsp), %rax
  mov %rax, 104(%rcx)
  mov -64(%rsp), %rax
  mov %rax, 112(%rcx)
  mov -128(%rsp), %rax
  mov %rax, 120(%rcx)
  pushfq
  pop %rax
  and $0x400, %eax
  mov %rax, 128(%rcx)
  cld
  EACH(STORE)
#if defined(__AVX512F__)
  UPPER(STORE)
  kmovw %k1, 152(%rcx)
  kmovw %k7, 160(%rcx)
  vzeroupper
#elif defined(__AVX__)
  vzeroupper
#endif
  fstpl 136(%rcx)
  fstpl 144(%rcx)
  stmxcsr 168(%rcx)
  fnstcw 172(%rcx)
  ldmxcsr (%rcx)
  fldcw 4(%rcx)
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size turn, . - turn
  .section .note.GNU-stack, "", @progbits
