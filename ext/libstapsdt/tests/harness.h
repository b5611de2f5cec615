/*
 * A test is a function without arguments; a failed CHECK ends it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct test {
  const char *name;
  void (*run)(void);
};

/* A suite is an array of tests that ends with {NULL, NULL}. */
extern const struct test note_tests[], elf_tests[], pool_tests[], fault_tests[],
    fork_tests[], loader_tests[], thread_tests[], scale_tests[],
    compat_tests[];

void harness_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Skip the running test. */
void harness_skip(const char *reason);

/* Return `full` with RBTRACE_SOAK=1, else a twentieth of it. */
unsigned long harness_count(unsigned long full);
/* Return the seed, from RBTRACE_SEED or the clock. Prints it for a repeated run. */
unsigned harness_seed(void);
/* Return whether valgrind or a sanitizer changes how memory behaves. */
int harness_instrumented(void);

/* By design, musl's dlclose unloads nothing. */
#if defined(__GLIBC__)
#define HARNESS_UNLOADS 1
#else
#define HARNESS_UNLOADS 0
#endif

/* Run `body` in a forked child, so that changes to limits and mounts are undone. */
void harness_in_child(void (*body)(void));

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      harness_fail(__FILE__, __LINE__, "%s", #condition);                      \
      return;                                                                  \
    }                                                                          \
  } while (0)

#define CHECK_EQ(actual, expected)                                             \
  do {                                                                         \
    long long actual_ = (long long)(actual);                                   \
    long long expected_ = (long long)(expected);                               \
    if (actual_ != expected_) {                                                \
      harness_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #actual,        \
                   actual_, expected_);                                        \
      return;                                                                  \
    }                                                                          \
  } while (0)

#define CHECK_STR(actual, expected)                                            \
  do {                                                                         \
    const char *actual_ = (actual);                                            \
    const char *expected_ = (expected);                                        \
    if (strcmp(actual_, expected_) != 0) {                                     \
      harness_fail(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #actual,    \
                   actual_, expected_);                                        \
      return;                                                                  \
    }                                                                          \
  } while (0)

/* Return whether a helper has failed this test. */
int harness_failed(void);
#define CHECK_HELPER(call)                                                     \
  do {                                                                         \
    call;                                                                      \
    if (harness_failed())                                                      \
      return;                                                                  \
  } while (0)

#endif /* HARNESS_H */
