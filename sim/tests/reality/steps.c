// Performs steps on a real file system and prints each with its result, for main.rs to replay.
//
//   gcc -O2 -static -Wall -o steps steps.c
//   ./steps DIR < LIST        paths in LIST are relative to DIR
//
// A step is a line: an operation and its arguments, single blanks between. Handles are small numbers.
// Lines that are empty or begin with '#' are printed as they are. A result is a number, the bytes
// read in quotes (a zero byte as '.'), the entries of a directory, "ok", or the name of an error.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int files[10];

static void told(long r) {
    if (r < 0)
        printf("%s", strerrorname_np(errno));
    else
        printf("%ld", r);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Entries in order; directories with a slash. A silly name (.nfs…) differs in each run.
static void list(const char *path) {
    char *names[100], buf[300];
    int n = 0;
    DIR *d = opendir(path);
    if (!d) {
        told(-1);
        return;
    }
    for (struct dirent *e; (e = readdir(d)) && n < 100;) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, "lost+found"))
            continue;
        struct stat st;
        int dir = !fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);
        int silly = !strncmp(e->d_name, ".nfs", 4);
        snprintf(buf, sizeof buf, "%s%s", silly ? ".nfs" : e->d_name, dir ? "/" : "");
        names[n++] = strdup(buf);
    }
    closedir(d);
    qsort(names, n, sizeof *names, by_name);
    printf("[");
    for (int i = 0; i < n; i++)
        printf("%s%s", i ? " " : "", names[i]);
    printf("]");
}

static void show_read(int fd, long pos, long len) {
    char *buf = malloc(len + 1);
    long n = pread(fd, buf, len, pos);
    if (n < 0) {
        told(n);
        return;
    }
    printf("\"");
    for (long i = 0; i < n; i++)
        putchar(buf[i] ? buf[i] : '.');
    printf("\"");
}

static long opened(int h, int fd) {
    if (fd < 0)
        return -1;
    struct stat st;
    if (!fstat(fd, &st) && S_ISDIR(st.st_mode)) {
        close(fd);
        errno = EISDIR;
        return -1;
    }
    files[h] = fd;
    return 0;
}

static void step(char *line) {
    char *w[5] = {0};
    int n = 0;
    for (char *t = strtok(line, " "); t && n < 5; t = strtok(NULL, " "))
        w[n++] = t;
    char *op = w[0], *a = w[1] ? w[1] : "", *b = w[2] ? w[2] : "";
    int h = atoi(a) % 10;
    if (!strcmp(op, "create"))
        told(opened(h, open(b, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)));
    else if (!strcmp(op, "open"))
        told(opened(h, open(b, O_RDONLY | O_CLOEXEC)));
    else if (!strcmp(op, "open-write"))
        told(opened(h, open(b, O_RDWR | O_CLOEXEC)));
    else if (!strcmp(op, "close"))
        told(close(files[h]));
    else if (!strcmp(op, "write"))
        told(pwrite(files[h], w[3], strlen(w[3]), atol(b)));
    else if (!strcmp(op, "read"))
        show_read(files[h], atol(b), atol(w[3]));
    else if (!strcmp(op, "len")) {
        // As OsVolume asks: for the size alone.
        struct statx st;
        long r = statx(files[h], "", AT_EMPTY_PATH, STATX_SIZE, &st);
        told(r < 0 ? r : (long)st.stx_size);
    } else if (!strcmp(op, "truncate"))
        told(ftruncate(files[h], atol(b)));
    else if (!strcmp(op, "sync"))
        told(fdatasync(files[h]));
    else if (!strcmp(op, "rename"))
        told(rename(a, b));
    else if (!strcmp(op, "unlink"))
        told(unlink(a));
    else if (!strcmp(op, "mkdir"))
        told(mkdir(a, 0777));
    else if (!strcmp(op, "rmdir"))
        told(rmdir(a));
    else if (!strcmp(op, "list"))
        list(*a ? a : ".");
    else if (!strcmp(op, "sync-dir")) {
        int fd = open(*a ? a : ".", O_RDONLY | O_DIRECTORY);
        told(fd < 0 ? -1 : fsync(fd));
        if (fd >= 0)
            close(fd);
    } else if (!strcmp(op, "wait")) {
        usleep(1000 * atol(a));
        told(0);
    } else
        printf("?");
}

int main(int argc, char **argv) {
    char line[1000], copy[1000];
    if (argc < 2 || chdir(argv[1])) {
        fprintf(stderr, "usage: steps DIR < LIST\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!*line || *line == '#') {
            puts(line);
            continue;
        }
        strcpy(copy, line);
        printf("%s -> ", line);
        step(copy);
        putchar('\n');
    }
    return 0;
}
