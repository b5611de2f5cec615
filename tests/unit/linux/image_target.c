/*
 * Defines probes with the library while a reader looks. The argument says how
 * many first; then, for each line of standard input, that many more at once.
 */
#include <stdio.h>
#include <stdlib.h>

#include "libstapsdt.h"

static const sdt_operand OPERANDS[] = {
    {"id", SDT_INTEGER, SDT_ARGUMENT},
    {"sku", SDT_STRING, SDT_ARGUMENT},
    {"", SDT_FLOAT, SDT_ARGUMENT},
    {"paid", SDT_BOOL, SDT_ARGUMENT},
};

static const sdt_operand SPAN[] = {
    {"duration_ns", SDT_INTEGER, SDT_DURATION},
    {"outcome", SDT_INTEGER, SDT_OUTCOME},
    {"id", SDT_INTEGER, SDT_ARGUMENT},
};

static int defined;

static void define(sdt_pool *pool, int count) {
  for (int i = 0; i < count; i++) {
    char name[32];
    sdt_error error;
    sdt_probe *probe;
    snprintf(name, sizeof name, "event%d", defined++);
    if (sdt_define(pool, "shop", name, SDT_EVENT, OPERANDS, 4, &error, &probe)) {
      puts(error.message);
      exit(1);
    }
  }
}

int main(int argc, char **argv) {
  char line[32];
  sdt_error error;
  sdt_probe *probe;
  sdt_pool *pool = sdt_pool_create();
  (void)argc;
  define(pool, atoi(argv[1]));
  if (sdt_define(pool, "shop", "checkout__end", SDT_SPAN_END, SPAN, 3, &error,
                 &probe)) {
    puts(error.message);
    return 1;
  }
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    define(pool, atoi(line));
    puts("done");
    fflush(stdout);
  }
  return 0;
}
