/* The machine as a fault wants it, for all processes of a sweep (LD_PRELOAD): Python's wall clock
   jumps, syncs take long, writes fail, and what has been synced is kept apart, so that the rest can
   be taken away as a loss of power takes it.

   machine.py tells in a file what is wanted, and cuts the power. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct wanted {
    double clock_seconds; /* added to the wall clock */
    uint32_t sync_ms;     /* that a sync takes longer */
    uint32_t error;       /* errno of writes and syncs; 0: they succeed */
};

static const struct wanted *wanted;
static const char *watched, *kept;
static void *python; /* where its code begins */

__attribute__((constructor)) static void begin(void) {
    static const struct wanted nothing;
    wanted = &nothing;
    const char *file = getenv("CHAOS_WANTED");
    watched = getenv("CHAOS_WATCHED");
    kept = getenv("CHAOS_KEPT");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *wanted, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        wanted = at;
    Dl_info found;
    void *main = dlsym(RTLD_DEFAULT, "Py_BytesMain");
    if (main && dladdr(main, &found))
        python = found.dli_fbase;
}

/* Waits of C++ libraries end at times of the kernel's clock: only what Python reads jumps. */
static double jump(void *caller) {
    Dl_info found;
    if (wanted->clock_seconds == 0 || !python)
        return 0;
    return dladdr(caller, &found) && found.dli_fbase == python ? wanted->clock_seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += (time_t)jump(__builtin_return_address(0));
    return failed;
}

/* Tells if a file is on the disk that may fail, with its path. */
static int is_watched(int fd, char *path, size_t size) {
    char link[32];
    if (!watched)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return !strncmp(path, watched, strlen(watched));
}

/* The name under which a file's content is kept: its number may be given to another one later. */
static int key_of(int fd, const char *name, char *key, size_t size) {
    struct statx found;
    int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
    if (statx(fd, name, flags, STATX_INO | STATX_BTIME | STATX_TYPE, &found))
        return -1;
    snprintf(key, size, "%llu-%lld.%u", (unsigned long long)found.stx_ino,
             (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    return S_ISDIR(found.stx_mode);
}

static void keep_listing(const char *path, FILE *out) {
    DIR *folder = opendir(path);
    char key[96];
    for (struct dirent *each; folder && (each = readdir(folder));) {
        int is_folder = strcmp(each->d_name, ".") && strcmp(each->d_name, "..")
                            ? key_of(dirfd(folder), each->d_name, key, sizeof key) : -1;
        if (is_folder >= 0)
            fprintf(out, "%c %s %s\n", is_folder ? 'd' : 'f', key, each->d_name);
    }
    if (folder)
        closedir(folder);
}

static void keep_content(const char *path, FILE *out) {
    char block[1 << 16];
    FILE *in = fopen(path, "re");
    for (size_t got; in && (got = fread(block, 1, sizeof block, in)) > 0;)
        fwrite(block, 1, got, out);
    if (in)
        fclose(in);
}

static void keep(int fd, const char *path) {
    char key[96], at[4096], meanwhile[4200], same[32];
    int is_folder = kept ? key_of(fd, "", key, sizeof key) : -1;
    if (is_folder < 0)
        return;
    snprintf(at, sizeof at, "%s/%s", kept, key);
    snprintf(meanwhile, sizeof meanwhile, "%s.%d", at, (int)syscall(SYS_gettid));
    snprintf(same, sizeof same, "/proc/self/fd/%d", fd);
    FILE *out = fopen(meanwhile, "we");
    if (!out)
        return;
    if (is_folder)
        keep_listing(path, out);
    else
        keep_content(same, out);
    fclose(out);
    rename(meanwhile, at);
}

static int synced(int fd, long call) {
    char path[4096];
    if (!is_watched(fd, path, sizeof path))
        return syscall(call, fd);
    if (wanted->sync_ms)
        usleep(wanted->sync_ms * 1000);
    if (wanted->error) {
        errno = wanted->error;
        return -1;
    }
    int failed = syscall(call, fd);
    if (!failed) {
        int before = errno;
        keep(fd, path);
        errno = before;
    }
    return failed;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int fails(int fd) {
    char path[4096];
    if (!wanted->error || !is_watched(fd, path, sizeof path))
        return 0;
    errno = wanted->error;
    return 1;
}

ssize_t write(int fd, const void *data, size_t size) {
    return fails(fd) ? -1 : syscall(SYS_write, fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}
