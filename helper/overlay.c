/* A root that begins as an image's tree is, costs nothing until it is written, and keeps what is written in a folder of its own. It is never
 * mounted twice, so nothing of it needs to outlast this machine's memory. */
#define _GNU_SOURCE
#include "confine.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYS_OPEN_TREE 428
#define SYS_MOVE_MOUNT 429
#define ATTR_IDMAP 0x00100000ULL
#define CLONE_TREE (1u | O_CLOEXEC) /* OPEN_TREE_CLONE */
#define FROM_DESCRIPTOR 4u          /* MOVE_MOUNT_F_EMPTY_PATH */

/* The tree as the place's users own it: its numbers stay on the disk, and are shifted by the mount. */
static void show_lower(const struct confinement *conf, const char *source) {
  struct mount_attributes wanted = {.set = ATTR_IDMAP | ATTR_RDONLY, .userns = (unsigned long long)conf->shift};
  int tree;
  if (conf->shift < 0) {
    if (mount(source, "/lower", NULL, MS_BIND | MS_SILENT, NULL)) confine_fail("can't stack %s", conf->lower);
    return;
  }
  tree = (int)syscall(SYS_OPEN_TREE, AT_FDCWD, source, CLONE_TREE);
  if (tree < 0 || syscall(SYS_MOUNT_SETATTR, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) ||
      syscall(SYS_MOVE_MOUNT, tree, "", AT_FDCWD, "/lower", FROM_DESCRIPTOR))
    confine_fail("can't stack %s: its owners can't be shifted", conf->lower);
  close(tree);
}

/* The place's numbers as the kernel wants them told for a mount: by a user namespace, which lives on in its descriptor. */
int confine_shift_of_ids(void) {
  int go[2], fd;
  char path[64], byte;
  pid_t child;
  if (pipe2(go, O_CLOEXEC)) confine_fail("can't make pipes");
  child = (pid_t)syscall(SYS_clone, (unsigned long)(CLONE_NEWUSER | SIGCHLD), NULL, NULL, NULL, 0);
  if (child < 0) confine_fail("can't make namespaces");
  if (!child) {
    close(go[1]);
    _exit(read(go[0], &byte, 1) != 0);
  }
  confine_map_ids(child);
  snprintf(path, sizeof path, "/proc/%d/ns/user", child);
  fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) confine_fail("can't hold a user namespace");
  close(go[0]);
  close(go[1]);
  waitpid(child, NULL, 0);
  return fd;
}

/* Called on the scratch root. The names in it are ours, so that no path of a user's has to be spelled as an option of the mount. */
void confine_mount_overlay(const struct confinement *conf, const char *outside, const char *root) {
  char path[4200], data[200];
  if (mkdir("/lower", 0755) || mkdir("/upper", 0755)) confine_fail("can't prepare the overlay");
  snprintf(path, sizeof path, "%s%s", outside, conf->lower);
  show_lower(conf, path);
  snprintf(path, sizeof path, "%s%s", outside, conf->upper);
  if (mount(path, "/upper", NULL, MS_BIND | MS_SILENT, NULL)) confine_fail("can't stack %s", conf->upper);
  snprintf(data, sizeof data, "lowerdir=/lower,upperdir=/upper/top,workdir=/upper/work,volatile%s", conf->uid_map[0] ? "" : ",userxattr");
  if (mount("overlay", root, "overlay", MS_NOSUID | MS_NODEV | MS_SILENT, data)) confine_fail("can't stack %s: no overlay", conf->lower);
}
