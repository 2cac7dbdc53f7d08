/* What the helper's files share: wire constants, buffers, connections and commands.
 *
 * The helper is one process with one loop (serve.c). Every command has a small supervisor process (launch.c) that adopts its orphans, so
 * that a whole tree can be found and ended (tree.c). File work happens in a forked worker (files.c, write.c): a disk that hangs stops that
 * worker, never the loop. Numbers on the wire are little-endian. */
#ifndef AGENTENV_HELPER_H
#define AGENTENV_HELPER_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define PROTOCOL_VERSION 2u
#define MAX_FRAME (4u << 20)        /* an EXEC carries a whole argument vector: the kernel's own bound is 2 MiB */
#define MAX_HELLO 4096u             /* what a caller may send before it has shown its token */
#define MAX_CONNECTIONS 64
#define MAX_COMMANDS 4096
#define IN_WINDOW (128u << 10)      /* bytes of standard input that a caller may send ahead */
#define FILES_WINDOW (1u << 20)     /* the same of file work, once it is seen to be large */
#define FILES_PIPE (256u << 10)     /* what the pipes of file work hold: fewer turns a megabyte */
#define OUT_HIGH (256u << 10)       /* above this much unsent output the pipes are left alone */
#define OUT_STOP (1u << 20)         /* above this much no further request is read from that caller */
#define CHUNK (64u << 10)
#define FORWARD_STREAM 0x80000000u  /* the helper numbers the streams of accepted connections from here */
#define ATTEMPT_MAX 128
#define ARGV0_MAX 96
#define LEDGER_MAX 256
#define NEVER UINT64_MAX
#define HELD_BACK_MS 50             /* between looks whether a command that waits for others may start */
#define OUTS 3
#define RESULT_FD 3

enum frame {
    F_HELLO = 1, F_WELCOME, F_REFUSED, F_EXEC, F_STARTED, F_LAUNCH_FAILED, F_STDIN, F_STDIN_EOF, F_CREDIT, F_STDOUT, F_STDERR, F_EXIT,
    F_KILL, F_KILL_ATTEMPT, F_FREEZE, F_THAW, F_LEDGER, F_LEDGER_ENTRY, F_SET_TTL, F_SHUTDOWN, F_DONE, F_FILES, F_PING,
    F_OPEN_TCP, F_LISTEN_TCP, F_ACCEPTED, F_CONFIGURE, F_RESULT, F_ENTRY, F_REJOIN, F_NETWORK, F_HEARD,
};

enum key {
    K_VERSION = 1, K_TOKEN, K_EPOCH, K_TTL_MS, K_ARG, K_ENV, K_CWD, K_USER, K_TIMEOUT_MS, K_GRACE_MS, K_LIMIT_OUT, K_LIMIT_ERR, K_ATTEMPT,
    K_RLIMIT, K_WINDOW, K_FLAGS, K_SIGNAL, K_OPERATION, K_OWNER, K_PORT, K_ENTRY_ARG, K_ADDRESS, K_FILE_LIMIT,
    K_RELAY_TOKEN, K_REJOIN, K_RECEIVED, K_AGE_MS, K_NETWORK_MS, K_WAIT_MS,
};

enum refused { REFUSED_TOKEN = 1, REFUSED_SUPERSEDED, REFUSED_VERSION, REFUSED_AWAITING, REFUSED_CONFIGURED, REFUSED_ENDED };
enum what { W_CWD = 1, W_PROGRAM, W_USER, W_INTERPRETER, W_RESOURCES, W_ARGUMENTS, W_LIMIT, W_IDENTITY, W_CONNECT, W_UNKNOWN, W_NETWORK };
enum exec_flag { X_STDIN = 1, X_STARTED = 2, X_RESULT = 4 };
enum config_flag { C_NEW_PRIVILEGES = 1, C_HOLD = 2, C_ALL_CAPABILITIES = 4, C_STARTER = 8, C_ENTRY_LATER = 16, C_LIMITED = 32, C_DEMANDED = 64,
    C_RESTART = 128 };
enum reached { REACHED_NOTHING, REACHED_MEMORY, REACHED_WATCHED_MEMORY, REACHED_DISK };
enum status_kind { S_STARTED = 1, S_FAILED, S_EXITED };

struct span { const uint8_t *data; size_t len; };
struct buf { uint8_t *data; size_t off, len, cap; };
struct log { struct buf frames; uint64_t bytes; };      /* the last bytes of output that were sent, as frames */

struct watch { int fd; uint8_t kind; uint32_t events; void *owner; };
enum watch_kind { WATCH_LISTEN, WATCH_SIGNAL, WATCH_CONN, WATCH_IN, WATCH_OUT, WATCH_ERR, WATCH_RESULT, WATCH_STATUS, WATCH_PORT, WATCH_FORWARD,
    WATCH_GUARDIAN };

struct conn {
    struct conn *next;
    struct watch watch;
    struct buf in, out;
    uint64_t epoch, opened_ms, serial;  /* the later it was accepted, the higher its serial */
    bool greeted, closing, dead, was_full, trusted, parted, relay;
};

/* How often the place has run into its limits: processes that the kernel ended for memory, what the guardian did for memory and for disk. */
struct limits { uint64_t killed, watched, disk; };

struct out { struct watch watch; uint64_t total, sent, limit, left; };

/* The numbers of a command's supervisor and of its first process; 0: not yet, or no longer. The supervisor writes them where the loop sees
 * them, and so need not wake it for them. One that was forked ahead says too that it has begun with the command. The loop says where a command
 * that has no process yet is to have none. */
struct live { _Atomic int supervisor, main_pid; _Atomic bool begun, called_off; bool used; };

/* What a supervisor tells the loop; small enough that a pipe never tears it. */
struct status { uint32_t kind; int32_t a, b; uint32_t unused; uint64_t user_us, system_us, rss_kb; };

struct cmd {
    struct cmd *next;
    struct conn *conn;              /* NULL once nobody listens: its owner left, or its ending was told */
    uint32_t stream;
    bool worker;                    /* file work or a TCP stream: no attempt, not in the ledger */
    bool files, want_started, failed, exited, told, timed_out, killing, frozen, hushed, gone, dead, entry, again;
    bool accompanied;               /* something else has run meanwhile */
    int stops;
    struct live *live;
    struct watch in, status;
    struct buf pending;             /* standard input that the pipe did not take yet */
    bool in_eof;
    struct out out[OUTS];           /* standard output, standard error, and the result pipe where one was asked for */
    uint64_t rejoin, serial;        /* the number by which its caller may come back for it, or 0; the last connection that he came by */
    uint64_t held_ms;               /* until when a caller that went is waited for, or 0 */
    struct log log;                 /* output that the caller has not said to have */
    uint64_t window, credit, in_window, in_total, in_credit, started_us, deadline_ms, grace_ms, kill_ms, kill_began_ms, sweep_ms, hush_ms;
    struct limits before;
    enum reached reached;
    struct status ending;
    struct buf handed;              /* what a supervisor that was forked ahead was told: one that is killed before it begins has done nothing */
    char attempt[ATTEMPT_MAX + 1], argv0[ARGV0_MAX];
};

#define ENDING_BYTES 64

struct config {
    struct span whole;              /* the TLVs as they came: env, cwd and user of the place are looked up in it */
    struct span token, relay_token;
    uint64_t epoch, ttl_ms, flags;
};

/* One helper is one process: this is its state. */
struct state {
    int epoll, listen, proc, null, signals;
    bool init, stopping, parting, hold, awaiting;
    int held_back; /* 0, or the milliseconds until the next look whether what waits for others may start */
    uint64_t now_ms, begun_ms, highest_epoch, ttl_at, stray_ms, stop_at, again_ms;
    int exit_code;
    struct config config;
    struct conn *conns;
    struct cmd *cmds;
    int conn_count, cmd_count;
    uint64_t nofile_soft, nofile_hard;
};
extern struct state g;

/* wire.c */
uint8_t *buf_room(struct buf *b, size_t want);
void buf_take(struct buf *b, size_t count);
void buf_shrink(struct buf *b, size_t most);
void buf_free(struct buf *b);
uint32_t get32(const uint8_t *p);
uint64_t get64(const uint8_t *p);
void put32(uint8_t *p, uint32_t v);
void put64(uint8_t *p, uint64_t v);
bool tlv_next(struct span *rest, uint16_t *key, struct span *value);
bool tlv_valid(struct span payload);
bool tlv_find(struct span payload, uint16_t key, struct span *value);
uint64_t tlv_u64(struct span payload, uint16_t key, uint64_t otherwise);
char *span_text(struct span value);
uint8_t *frame_put(struct buf *b, uint8_t type, uint32_t stream, size_t payload);
void conn_send(struct conn *c, uint8_t type, uint32_t stream, const void *payload, size_t len);
bool same_bytes(struct span a, struct span b);
bool write_all(int fd, const void *data, size_t len);
bool read_all(int fd, void *data, size_t len);

/* serve.c */
int serve_main(int argc, char **argv);
bool config_take(struct span whole);
void score_restore(void);
void watch_set(struct watch *w, uint32_t events);
void watch_close(struct watch *w);
void conn_end(struct conn *c);
uint64_t clock_ms(int clock);
uint64_t clock_us(void);

/* requests.c */
bool request(struct conn *c, uint8_t type, uint32_t stream, struct span payload);
void requests_settle(void);
void requests_forget(struct conn *c);
void requests_stopped(void);

/* begin.c */
void exec_start(struct conn *c, uint32_t stream, struct span payload, uint8_t type);
void exec_entry(struct conn *c, uint32_t stream);
bool exec_begun_anew(struct cmd *cmd);

/* exec.c */
struct cmd *exec_find(struct conn *c, uint32_t stream);
bool exec_stdin(struct cmd *cmd, struct span data);
void exec_stdin_eof(struct cmd *cmd);
void exec_event(struct watch *w);
void exec_refresh(struct cmd *cmd);
void exec_kill(struct cmd *cmd);
void exec_timers(void);
uint64_t exec_next_ms(void);
void exec_detach(struct conn *c);
void exec_settle(struct cmd *cmd);
void exec_started(struct cmd *cmd);
void exec_failed(struct conn *c, uint32_t stream, int what, int error);
void exec_collect(void);
void exec_reaped(int pid);
void exec_stopped(int pid);

/* rejoin.c */
bool log_takes(size_t len);
void log_add(struct log *log, uint8_t type, const uint8_t *data, size_t len);
void log_forget(struct log *log);
void rejoin_credit(struct cmd *cmd, uint64_t more);
void rejoin_command(struct conn *c, uint32_t stream, struct span payload);
void rejoin_await(struct cmd *cmd);
void rejoin_remember(struct cmd *cmd, uint8_t type, const uint8_t *ending, size_t len);
bool rejoin_may_begin(const struct conn *c, uint64_t number);
void rejoin_heard(uint64_t number);
void rejoin_timers(void);
void rejoin_give_up(struct cmd *cmd);
void rejoin_nobody(void);

/* container.c */
int install_main(int argc, char **argv);
int container_connect(const char *name);
bool container_listen(const char *name);
bool container_trusts(int fd);
void container_harden(void);
void container_signals(sigset_t *mask);
bool container_ends_on(int sig);
bool container_configure(struct conn *c, uint32_t stream, struct span payload);
void container_entry_ended(const struct status *ending);

/* forward.c */
void forward_listen(struct conn *c, uint32_t stream, struct span payload);
bool forward_frame(struct conn *c, uint8_t type, uint32_t stream, struct span payload);
bool forward_unlisten(struct conn *c, uint32_t stream);
void forward_event(struct watch *w, uint32_t events);
void forward_drained(struct conn *c);
void forward_detach(struct conn *c);
uint64_t forward_next_ms(void);
void forward_collect(void);

/* ledger.c */
void ledger_remember(const struct cmd *cmd);
void ledger_send(struct conn *c, uint32_t stream);

/* live.c */
struct live *live_take(void);

/* launch.c */
struct launch { struct span request; int stdio[RESULT_FD + 1]; int status; struct live *live; };
void supervise(const struct launch *l) __attribute__((noreturn));
void report(int fd, uint32_t kind, int a, int b);
void keep_only(const int *kept, int count);

/* ready.c */
bool hold_back(int ms);
bool ready_begin(int fd);
bool ready_holds_back(const struct conn *c, uint8_t type);
void ready_event(void);
bool ready_networked(void);
bool ready_refuses(void);

/* limits.c */
void limits_begin(int given);
void limits_told(char word);
struct limits limits_now(void);
enum reached limits_reached(const struct cmd *cmd);

/* hush.c */
bool hush_holds_back(uint8_t type, struct span payload);
void hush_begin(struct cmd *cmd);
void hush_end(struct cmd *cmd);

/* start.c */
bool starter_begin(void);
bool starter_serves(void);
bool starter_take(const struct launch *l);
struct ends { int out, err, status; }; /* of a command's pipes, the loop's */
bool starter_hand_over(struct span request, struct live *live, struct ends *ends);
bool starter_ahead(int pid);
void starter_dismiss(void);
void starter_reaped(int pid);

/* tree.c */
bool tree_crowded(int root);
int tree_signal(int root, int sig, bool groups);
void tree_terminate(int root, uint64_t grace_ms);
int tree_freeze(int root);
int trees_freeze(const int *roots, int count);
bool tree_kill(int root);
int strays_kill(void);

/* users.c */
struct identity { uint32_t uid, gid; uint32_t groups[64]; int group_count; char home[256]; };
int identity_find(const char *spec, struct identity *who);
int identity_default(struct identity *who, bool home);
void own_streams(const struct identity *who);

/* sha256.c */
struct sha256 { uint32_t h[8]; uint64_t total; uint8_t block[64]; };
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t len);
void sha256_end(struct sha256 *s, uint8_t digest[32]);

/* files.c and write.c: run in a forked worker, reading records from 0 and writing records to 1 */
enum operation { OP_STAT = 1, OP_WALK, OP_READ, OP_WRITE, OP_REMOVE };
enum record { R_PATH = 1, R_FILE, R_FOLDER, R_DATA, R_END, R_ENTRY, R_ERROR, R_DONE };
enum file_flag { FILE_FOLLOW = 1, FILE_DIGEST = 2, FILE_SYNC = 4 };
struct record_in { uint8_t type; uint32_t index; struct span payload; };
int files_main(struct span payload);
bool record_read(struct record_in *r);
void record_send(uint8_t type, uint32_t index, const void *payload, size_t len);
void record_error(uint32_t index, int error);
void record_flush(void);
void write_files(struct span payload);
int open_regular(int dir, const char *path, int *error);

/* connect.c, tcp.c, confine.c */
int connect_main(int argc, char **argv);
int reach_main(int argc, char **argv);
int tcp_main(struct span payload);
int confine_main(int argc, char **argv);

#endif
