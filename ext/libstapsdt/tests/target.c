/*
 * A program to trace. It reads commands from stdin, one per line, and answers
 * each with one line on stdout, so that tests never depend on the clock.
 *
 *
 *   define PROVIDER NAME COUNT   COUNT Integer operands, named by letters
 *   fire NAME TIMES              operand i is 1000 * (i + 1) + the shot's number
 *   fork                         "child PID"; commands go to the child until
 *   exit                         it (or the program) ends
 *   watched NAME                 "1" or "0"; `compat`: that provider's probe
 *   compat                       a provider of the original interface
 *   compat-fire                  once
 *
 * SPDX-License-Identifier: MIT
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libstapsdt.h"

#define MAX_PROBES 64

static struct {
  char name[SDT_MAX_NAME + 1];
  sdt_probe *probe;
} probes[MAX_PROBES];
static size_t probe_count;
static sdt_pool *pool;
static SDTProbe_t *compat_probe;

static void say(const char *text) {
  puts(text);
  fflush(stdout);
}

static sdt_probe *find(const char *name) {
  for (size_t i = 0; i < probe_count; i++)
    if (strcmp(probes[i].name, name) == 0)
      return probes[i].probe;
  fprintf(stderr, "no probe %s\n", name);
  exit(1);
}

static void define(const char *provider, const char *name, size_t count) {
  static const char *const letters[SDT_MAX_OPERANDS] = {
      "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
  sdt_operand operands[SDT_MAX_OPERANDS];
  for (size_t i = 0; i < SDT_MAX_OPERANDS; i++)
    operands[i] = (sdt_operand){letters[i], SDT_INTEGER, SDT_ARGUMENT};

  sdt_error error;
  sdt_probe *probe;
  if (probe_count == MAX_PROBES ||
      sdt_define(pool, provider, name, SDT_EVENT, operands, count, &error,
                 &probe) != SDT_OK) {
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
  snprintf(probes[probe_count].name, sizeof(probes[0].name), "%s", name);
  probes[probe_count++].probe = probe;
}

static void fire(const char *name, unsigned long times) {
  sdt_probe *probe = find(name);
  for (unsigned long shot = 0; shot < times; shot++) {
    uint64_t operands[SDT_MAX_OPERANDS];
    for (size_t i = 0; i < SDT_MAX_OPERANDS; i++)
      operands[i] = 1000 * (i + 1) + shot;
    sdt_fire(probe, operands);
  }
}

static void fork_child(void) {
  pid_t child = fork();
  if (child < 0) {
    perror("fork");
    exit(1);
  }
  if (child == 0) {
    printf("child %ld\n", (long)getpid());
    fflush(stdout);
    return;
  }
  int status;
  waitpid(child, &status, 0);
  say(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "parent" : "dead");
}

static void compat(void) {
  SDTProvider_t *provider = providerInit("original");
  compat_probe =
      providerAddProbe(provider, "sized", 6, int8, uint8, int16, uint16, int32,
                       uint64);
  if (!compat_probe || providerLoad(provider) != 0) {
    fprintf(stderr, "%s\n", provider->error);
    exit(1);
  }
}

static int is_watched(const char *name) {
  if (strcmp(name, "compat") == 0)
    return probeIsEnabled(compat_probe);
  return sdt_watched(find(name));
}

static void obey(const char *line) {
  char word[32] = "", provider[64] = "", name[64] = "";
  unsigned long number = 0;

  if (sscanf(line, "define %63s %63s %lu", provider, name, &number) == 3) {
    define(provider, name, number);
    say("ok");
  } else if (sscanf(line, "fire %63s %lu", name, &number) == 2) {
    fire(name, number);
    say("ok");
  } else if (sscanf(line, "watched %63s", name) == 1) {
    say(is_watched(name) ? "1" : "0");
  } else if (sscanf(line, "%31s", word) == 1 && strcmp(word, "fork") == 0) {
    fork_child();
  } else if (strcmp(word, "compat") == 0) {
    compat();
    say("ok");
  } else if (strcmp(word, "compat-fire") == 0) {
    probeFire(compat_probe, -1, 2, -3, 4, -5, 6);
    say("ok");
  } else if (strcmp(word, "exit") == 0) {
    exit(0);
  } else {
    fprintf(stderr, "unknown command: %s", line);
    exit(1);
  }
}

/* stdio would read ahead, and take lines meant for the parent of a fork. */
static int read_line(char *line, size_t size) {
  size_t length = 0;
  while (length + 1 < size && read(STDIN_FILENO, line + length, 1) == 1)
    if (line[length++] == '\n')
      break;
  line[length] = 0;
  return length != 0;
}

int main(void) {
  pool = sdt_pool_create();
  if (!pool)
    return 1;

  char line[256];
  say("ready");
  while (read_line(line, sizeof(line)))
    obey(line);
  sdt_pool_destroy(pool);
  return 0;
}
