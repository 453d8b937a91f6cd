/* Preloaded: writes to regular files, and their way to the disk, fail while a test wants it. VRAMP_TEST_BREAK names a
   file of two 32-bit numbers: the errno of write, pwrite, writev and of opening for writing, and that of fsync and
   fdatasync; 0 lets them through. Pipes, sockets and terminals work as always. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int32_t *broken;

__attribute__((constructor)) static void map_switches(void) {
    const char *path = getenv("VRAMP_TEST_BREAK");
    int (*really_open)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    int fd = path ? really_open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, 2 * sizeof *broken, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) broken = page;
    close(fd);
}

static int fails(int fd, int which) {
    struct stat about;
    if (!broken || !broken[which] || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return 0;
    errno = broken[which];
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) { return fails(fd, 0) ? -1 : NEXT(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails(fd, 0) ? -1 : NEXT(pwrite)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return fails(fd, 0) ? -1 : NEXT(writev)(fd, parts, count);
}
int fsync(int fd) { return fails(fd, 1) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return fails(fd, 1) ? -1 : NEXT(fdatasync)(fd); }

/* With O_CREAT nothing may be made; /dev/null and terminals are opened without. */
static int open_fails(int flags) {
    if (!broken || !broken[0] || !(flags & O_CREAT)) return 0;
    errno = broken[0];
    return 1;
}

#define OPEN(name)                                               \
    int name(const char *path, int flags, ...) {                 \
        va_list more;                                            \
        va_start(more, flags);                                   \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
        va_end(more);                                            \
        return open_fails(flags) ? -1 : NEXT(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
