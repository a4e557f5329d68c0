/* Storage that is slow, for `benchmarks.slow_storage`: preloaded, it delays calls on files below SLOW_DIR.

   open to write, mkdir, rename and fsync wait SLOW_MS milliseconds each, as a round trip to a file server does; what is
   written passes at SLOW_MIB_PER_S, shared by all threads. Reads and relative paths are left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t line = PTHREAD_MUTEX_INITIALIZER;

static double number(const char *name) {
  const char *text = getenv(name);
  return text ? atof(text) : 0.0;
}

static void wait_s(double seconds) {
  struct timespec span = {(time_t)seconds, (long)(1e9 * (seconds - (time_t)seconds))};
  nanosleep(&span, NULL);
}

static int is_slow(const char *path) {
  const char *directory = getenv("SLOW_DIR");
  return directory && *directory && path && strncmp(path, directory, strlen(directory)) == 0;
}

static int is_slow_file(int file) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return is_slow(path);
}

static void round_trip(int slow) {
  if (slow) wait_s(number("SLOW_MS") / 1e3);
}

static void pass(int file, size_t bytes) {
  double rate = number("SLOW_MIB_PER_S") * (1 << 20);
  if (rate <= 0 || !is_slow_file(file)) return;
  pthread_mutex_lock(&line);
  wait_s(bytes / rate);
  pthread_mutex_unlock(&line);
}

static size_t total(const struct iovec *parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
  return bytes;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                        \
  int name(const char *path, int flags, ...) {            \
    va_list rest;                                         \
    va_start(rest, flags);                                \
    mode_t mode = va_arg(rest, mode_t);                   \
    va_end(rest);                                         \
    round_trip((flags & O_ACCMODE) != O_RDONLY && is_slow(path)); \
    return REAL(name)(path, flags, mode);                 \
  }
OPEN(open)
OPEN(open64)

int mkdir(const char *path, mode_t mode) {
  round_trip(is_slow(path));
  return REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to) {
  round_trip(is_slow(to));
  return REAL(rename)(from, to);
}

int fsync(int file) {
  round_trip(is_slow_file(file));
  return REAL(fsync)(file);
}

ssize_t write(int file, const void *data, size_t size) {
  pass(file, size);
  return REAL(write)(file, data, size);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
  pass(file, total(parts, count));
  return REAL(writev)(file, parts, count);
}

#define PWRITE(name, offset_type)                                             \
  ssize_t name(int file, const void *data, size_t size, offset_type offset) { \
    pass(file, size);                                                         \
    return REAL(name)(file, data, size, offset);                              \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
