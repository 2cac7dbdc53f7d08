/* The system calls that a place may not make: what reaches shared kernel state that no namespace divides, and what would let a
 * command harm its own PID 1. Everything else is left to namespaces, capabilities and file permissions. */
#define _GNU_SOURCE
#include "confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the filter knows x86-64 and aarch64"
#endif

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define ANSWER(code) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (code))
#define REFUSE(number, code) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), ANSWER(code)

/* A call whose arguments name a process (kind, number) or all of a user: neither may mean PID 1. */
#define NOT_OF_PID_1(number, process, user)                                                   \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 7), LOAD(args[0]),                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (user), 3, 0),                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (process), 0, 3), LOAD(args[1]),                       \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1), ANSWER(EPERM),                               \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

#define CLONE3 435
#define NEW_USER_NAMESPACE 0x10000000 /* CLONE_NEWUSER */
#define IO_URING_SETUP 425
#define IO_URING_ENTER 426
#define IO_URING_REGISTER 427

static struct sock_filter FILTER[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCHITECTURE, 1, 0),
    ANSWER(ENOSYS),
    LOAD(nr),
#if defined(__x86_64__)
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), /* the x32 numbers */
    ANSWER(ENOSYS),
#endif
    /* Keys belong to a user id, and an ordinary user's place shares that id. */
    REFUSE(SYS_keyctl, EPERM),
    REFUSE(SYS_add_key, EPERM),
    REFUSE(SYS_request_key, EPERM),
    REFUSE(SYS_bpf, EPERM),
    REFUSE(SYS_userfaultfd, EPERM),
    REFUSE(SYS_perf_event_open, EPERM),
    REFUSE(SYS_open_by_handle_at, EPERM),
    REFUSE(SYS_kexec_load, EPERM),
    REFUSE(IO_URING_SETUP, ENOSYS),
    REFUSE(IO_URING_ENTER, ENOSYS),
    REFUSE(IO_URING_REGISTER, ENOSYS),
    /* A further user namespace would give capabilities over namespaces made in it. Where the flags can't be read, the caller is
     * told to use the older call, whose flags can. */
    REFUSE(CLONE3, ENOSYS),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 1, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_USER_NAMESPACE, 0, 1),
    ANSWER(EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    /* In a virtual machine these sockets lead to its host, past every network namespace. */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_VSOCK, 0, 1),
    ANSWER(EAFNOSUPPORT),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    /* Nor may PID 1 be made to wait behind everything else. */
    NOT_OF_PID_1(SYS_setpriority, PRIO_PROCESS, PRIO_USER),
    NOT_OF_PID_1(SYS_ioprio_set, 1, 3), /* IOPRIO_WHO_PROCESS, IOPRIO_WHO_USER */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setparam, 3, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setscheduler, 2, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setattr, 1, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setaffinity, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1),
    ANSWER(EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    /* Limits of PID 1 are not for its children to set, although they share its user id. */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 0, 6),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 4),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), /* only asking */
    ANSWER(EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

void confine_filter(void) {
  struct sock_fprog program = {.len = sizeof FILTER / sizeof *FILTER, .filter = FILTER};
  /* A kernel without filters is told apart from one that refuses this filter. */
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) && errno != ENOSYS) confine_fail("can't filter system calls");
}

int confine_filter_file(void) {
  int fd = (int)syscall(SYS_memfd_create, "filter", 0);
  if (fd < 0 || write(fd, FILTER, sizeof FILTER) != (ssize_t)sizeof FILTER || lseek(fd, 0, SEEK_SET))
    confine_fail("can't hand over the filter");
  return fd;
}
