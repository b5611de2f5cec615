/* A program that tries to get access to all it can, and prints the results. With "wait",
   it only waits, as the target of a tracer. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, long result) {
    printf("%s %d\n", name, result < 0 ? errno : 0);
}

int main(int argc, char **argv, char **environment) {
    char path[64], line[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "wait") == 0) {
        puts("ready");
        return getchar();
    }
    unsigned int r, e, s;
    getresuid(&r, &e, &s);
    printf("uids %u %u %u\n", r, e, s);
    getresgid(&r, &e, &s);
    printf("gids %u %u %u\n", r, e, s);
    gid_t groups[64];
    int count = getgroups(64, groups);
    printf("groups");
    for (int i = 0; i < count; i++) printf(" %u", groups[i]);
    printf("\n");
    snprintf(path, sizeof path, "/proc/%d/status", getpid());
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10) ||
            !strncmp(line, "Seccomp:", 8))
            printf("status %s", line);
    if (status) fclose(status);
    say("setuid", syscall(SYS_setuid, 0));
    say("socket", socket(AF_INET, SOCK_STREAM, 0));
    say("unix", socket(AF_UNIX, SOCK_STREAM, 0));
    say("kill", kill(getppid() ? getppid() : 1, 0));
    say("ptrace", syscall(SYS_ptrace, 16, 1, 0, 0));
    say("peek", syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0));
    say("create", open("/tmp/rbtrace-trap", O_CREAT | O_WRONLY, 0666));
    say("append", open("/etc/passwd", O_WRONLY | O_APPEND));
    say("unlink", unlink("/tmp/rbtrace-none"));
    say("fork", syscall(SYS_fork));
    say("clone", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    say("unshare", unshare(CLONE_NEWUSER));
    say("mount", syscall(SYS_mount, "none", "/mnt", "tmpfs", 0, 0));
    say("bpf", syscall(SYS_bpf, 0, 0, 0));
    printf("root %d\n", access("/rbtrace-root", F_OK) == 0);
    printf("pid %d\n", getpid());
    for (int fd = 3; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) >= 0) printf("open %d\n", fd);
    for (; *environment; environment++) printf("env %s\n", *environment);
    puts("ready");
    for (;;) sleep(1000);
}
