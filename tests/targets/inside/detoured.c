/* Waits in one system call after another, and prints how each of them ended.

   detoured KIND [MILLISECONDS]: prints "ready", waits for a line, then makes calls of that
   kind and prints "RESULT ERRNO MILLISECONDS" for each; a second line ends it.

   Signals with handlers: SIGUSR1 without SA_RESTART, SIGRTMIN with. Its last line of
   output is how often each arrived. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile int usr1, rtmin;
static int word, quiet[2];

static void on_signal(int number) {
  if (number == SIGUSR1)
    usr1++;
  else
    rtmin++;
}

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A socket with a time limit, to which a child forwards a byte of the input. */
static int timed_socket(void) {
  struct timeval limit = {60, 0};
  int pair[2];
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
  setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (fork() == 0) _exit(read(0, &byte, 1) != 1 || send(pair[1], &byte, 1, 0) != 1);
  return pair[0];
}

static long call(const char *kind, long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  struct pollfd fd = {quiet[0], POLLIN, 0};
  struct epoll_event event = {EPOLLIN, {0}};
  char byte;
  if (!strcmp(kind, "nanosleep")) return nanosleep(&time, NULL);
  if (!strcmp(kind, "poll")) return poll(&fd, 1, (int)ms);
  if (!strcmp(kind, "futex"))
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0);
  if (!strcmp(kind, "read")) return read(0, &byte, 1);
  if (!strcmp(kind, "recv")) return recv(timed_socket(), &byte, 1, 0);
  if (!strcmp(kind, "read socket")) return read(timed_socket(), &byte, 1);
  if (!strcmp(kind, "epoll")) {
    int set = epoll_create1(0);
    event.data.fd = 0;
    epoll_ctl(set, EPOLL_CTL_ADD, 0, &event);
    return epoll_wait(set, &event, 1, (int)ms);
  }
  if (!strcmp(kind, "pause")) return pause();
  if (!strcmp(kind, "vfork")) {
    /* The parent cannot be stopped until the child has ended. */
    pid_t child = vfork();
    if (child == 0) {
      nanosleep(&time, NULL);
      _exit(0);
    }
    return child > 0;
  }
  abort();
}

/* Ends when it is sent SIGUSR1. */
static void spin(void) {
  double sum = 0, again = 0;
  long rounds = 0, wrong = 0;
  puts("calling");
  while (!usr1 || !rounds) {
    sum = 1;
    for (int i = 1; i < 10000; i++) sum = sum * 1.0001 + 1.0 / i;
    if (rounds++ && sum != again) wrong++;
    again = sum;
  }
  printf("wrong %ld\n", wrong);
}

/* Spins on a stack of 16 kB, below which is a page without any access rights. */
static void spin_tightly(void) {
  static ucontext_t home, there;
  size_t size = 16 << 10;
  char *memory = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(memory, 4096, PROT_NONE);
  getcontext(&there);
  there.uc_stack.ss_sp = memory + 4096;
  there.uc_stack.ss_size = size;
  there.uc_link = &home;
  makecontext(&there, spin, 0);
  swapcontext(&home, &there);
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_handler = on_signal};
  char line[64];
  sigaction(SIGUSR1, &action, NULL);
  action.sa_flags = SA_RESTART;
  sigaction(SIGRTMIN, &action, NULL);
  if (pipe(quiet)) return 1;
  setvbuf(stdin, NULL, _IONBF, 0);
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  if (!fgets(line, sizeof line, stdin)) return 1;
  if (!strcmp(argv[1], "spin")) {
    if (argc > 2)
      spin_tightly();
    else
      spin();
  } else {
    long began = now();
    puts("calling");
    errno = 0;
    long result = call(argv[1], argc > 2 ? atol(argv[2]) : -1);
    int error = errno;
    long took = now() - began;
    /* The rest of the line that ended it. */
    const char *told[] = {"read", "epoll", "recv", "read socket"};
    int was_told = 0;
    for (int i = 0; i < 4; i++) was_told |= !strcmp(argv[1], told[i]);
    if (was_told && result > 0 && !fgets(line, sizeof line, stdin)) return 1;
    printf("%ld %d %ld\n", result, error, took);
  }
  if (!fgets(line, sizeof line, stdin)) return 1;
  printf("signals %d %d\n", usr1, rtmin);
  return 0;
}
