/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "harness.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failed, skipped;

static const struct {
  const char *name;
  const struct test *tests;
} suites[] = {
    {"note", note_tests},     {"elf", elf_tests},       {"pool", pool_tests},
    {"fault", fault_tests},   {"fork", fork_tests},
    {"loader", loader_tests},
    {"thread", thread_tests}, {"compat", compat_tests}, {"scale", scale_tests},
};

void harness_fail(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("  %s:%d: ", file, line);
  vprintf(format, arguments);
  printf("\n");
  fflush(stdout);
  va_end(arguments);
  __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
}

void harness_skip(const char *reason) {
  printf("  skipped: %s\n", reason);
  skipped = 1;
}

int harness_failed(void) { return __atomic_load_n(&failed, __ATOMIC_RELAXED); }

unsigned long harness_count(unsigned long full) {
  const char *soak = getenv("RBTRACE_SOAK");
  if (soak && strcmp(soak, "1") == 0)
    return full;
  return full < 20 ? 1 : full / 20;
}

unsigned harness_seed(void) {
  const char *given = getenv("RBTRACE_SEED");
  unsigned seed = given ? (unsigned)strtoul(given, NULL, 10)
                        : (unsigned)time(NULL) ^ (unsigned)getpid();
  printf("  seed: RBTRACE_SEED=%u\n", seed);
  return seed;
}

int harness_instrumented(void) {
  return getenv("SDT_TEST_INSTRUMENTED") != NULL;
}

void harness_in_child(void (*body)(void)) {
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    fflush(stdout);
    _exit(failed ? 1 : skipped ? 2 : 0);
  }

  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2)
    skipped = 1;
  else
    CHECK_EQ(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv) {
  const char *filter = argc > 1 ? argv[1] : "";
  unsigned passes = 0, failures = 0, skips = 0;

  for (size_t i = 0; i < sizeof(suites) / sizeof(suites[0]); i++)
    for (const struct test *test = suites[i].tests; test->name; test++) {
      char name[128];
      snprintf(name, sizeof(name), "%s: %s", suites[i].name, test->name);
      if (!strstr(name, filter))
        continue;
      printf("%s\n", name);
      fflush(stdout);
      failed = skipped = 0;
      test->run();
      if (failed)
        failures++;
      else if (skipped)
        skips++;
      else
        passes++;
    }
  printf("%u passed, %u failed", passes, failures);
  if (skips)
    printf(", %u skipped", skips);
  printf("\n");
  return failures != 0;
}
