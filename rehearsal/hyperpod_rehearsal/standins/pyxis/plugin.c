/* Stand-in of NVIDIA's pyxis and enroot, for who has not got their sources: `srun --container-image=IMAGE.sqsh`.
 *
 * build: cc -shared -fPIC -O2 -Wall -o spank_pyxis.so plugin.c       (spank.h of this very Slurm)
 * plugstack.conf: required /usr/lib/slurm/spank_pyxis.so; its arguments are accepted and not heeded
 *
 * As with the real ones: the options and variables, an image unpacked by the user for each step of a node, a root that
 * is read-only, the node's /proc, /sys, /dev and /dev/shm, /etc/enroot's fstabs, mounts that fail end the task, a mount
 * that the node makes anew is not seen. Other than the real ones: each task has mount and user namespaces of its own,
 * an image is a squashfs or a directory of the node's, and nothing of an image is run or read before the task: no
 * entrypoint, no ENV, no WORKDIR.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <dirent.h>
#include <limits.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1);

#define SAY "pyxis (stand-in): "
#define FSTABS "/etc/enroot/mounts.d"

enum option { IMAGE, MOUNTS, WORKDIR, NAME, UNSHARE, ENV, SAVE, REMAP_ROOT, NO_REMAP_ROOT, WRITABLE, IGNORED, OPTIONS };

static const char *variables[OPTIONS] = {
    [IMAGE] = "PYXIS_CONTAINER_IMAGE",   [MOUNTS] = "PYXIS_CONTAINER_MOUNTS", [WORKDIR] = "PYXIS_CONTAINER_WORKDIR",
    [NAME] = "PYXIS_CONTAINER_NAME",     [UNSHARE] = "PYXIS_CONTAINER_UNSHARE", [ENV] = "PYXIS_CONTAINER_ENV",
    [SAVE] = "PYXIS_CONTAINER_SAVE",
};
static char *given[OPTIONS];
static char root[PATH_MAX]; /* the unpacked image */
static int ours;            /* it was unpacked for this step and goes with it */
static uid_t uid;
static gid_t gid;

static int set(int which, const char *value, int remote) {
    (void)remote;
    char *joined = NULL;
    if (which == MOUNTS && given[which]) {
        if (asprintf(&joined, "%s,%s", given[which], value) < 0)
            return -1;
    } else {
        joined = strdup(value ? value : "yes");
    }
    free(given[which]);
    given[which] = joined;
    return joined ? 0 : -1;
}

#define WITH(name, arg, which) {(char *)name, (char *)arg, (char *)"as pyxis has it (stand-in of a rehearsal)", 1, which, (spank_opt_cb_f)set}
#define FLAG(name, which) {(char *)name, NULL, (char *)"as pyxis has it (stand-in of a rehearsal)", 0, which, (spank_opt_cb_f)set}

struct spank_option spank_options[] = {
    WITH("container-image", "IMAGE", IMAGE),
    WITH("container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", MOUNTS),
    WITH("container-workdir", "PATH", WORKDIR),
    WITH("container-name", "NAME", NAME),
    WITH("container-save", "PATH", SAVE),
    WITH("container-env", "NAME[,NAME...]", ENV),
    WITH("container-unshare", "NAMESPACE[,NAMESPACE...]", UNSHARE),
    FLAG("container-mount-home", IGNORED),
    FLAG("no-container-mount-home", IGNORED),
    FLAG("container-remap-root", REMAP_ROOT),
    FLAG("no-container-remap-root", NO_REMAP_ROOT),
    FLAG("container-entrypoint", IGNORED),
    FLAG("no-container-entrypoint", IGNORED),
    FLAG("container-entrypoint-log", IGNORED),
    FLAG("container-writable", WRITABLE),
    FLAG("container-readonly", IGNORED),
    SPANK_OPTIONS_TABLE_END,
};

static int fail(const char *format, ...) {
    char text[PATH_MAX * 2];
    int number = errno;
    va_list words;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    slurm_error(SAY "%s: %s", text, strerror(number));
    return -1;
}

/* --- once for each step of a node, as the user ------------------------------------------------------------------- */

/* A program with the user's rights; what it says goes to the task's standard error where it fails. */
static int run(char *const argv[]) {
    char log[] = "/tmp/.pyxis-standin.XXXXXX", line[512];
    int fd = mkstemp(log), status = -1;
    if (fd < 0)
        return fail("%s", log);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 1);
        dup2(fd, 2);
        if (uid && (setregid(gid, gid) || setreuid(uid, uid)))
            _exit(126);
        umask(022);
        execvp(argv[0], argv);
        dprintf(2, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    int good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    FILE *said = good ? NULL : fdopen(fd, "r");
    if (said) {
        rewind(said);
        while (fgets(line, sizeof line, said))
            slurm_error(SAY "    %.*s", (int)strcspn(line, "\n"), line);
        fclose(said);
    } else {
        close(fd);
    }
    unlink(log);
    return good ? 0 : -1;
}

static void read_variables(spank_t sp) {
    char value[PATH_MAX * 4];
    for (int which = 0; which < OPTIONS; which++)
        if (variables[which] && !given[which] &&
            spank_getenv(sp, variables[which], value, sizeof value) == ESPANK_SUCCESS && *value)
            given[which] = strdup(value);
}

int slurm_spank_user_init(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    uint32_t job = 0, step = 0;
    struct stat seen;
    spank_get_item(sp, S_JOB_ID, &job);
    spank_get_item(sp, S_JOB_STEPID, &step);
    spank_get_item(sp, S_JOB_UID, &uid);
    spank_get_item(sp, S_JOB_GID, &gid);
    read_variables(sp);
    if (!given[IMAGE] && !given[NAME])
        return 0;
    if (step == SLURM_BATCH_SCRIPT || given[SAVE]) {
        slurm_error(SAY "sbatch --container-image and --container-save are in the real one only");
        return -1;
    }
    const char *place = access("/var/lib/enroot", W_OK) == 0 ? "/var/lib/enroot" : "/run/enroot";
    char data[PATH_MAX / 4], name[NAME_MAX / 2];
    snprintf(data, sizeof data, "%s/data-%u", place, uid);
    if (given[NAME])
        snprintf(name, sizeof name, "pyxis_%.*s", (int)strcspn(given[NAME], ":"), given[NAME]);
    else
        snprintf(name, sizeof name, "pyxis_%u.%u", job, step);
    snprintf(root, sizeof root, "%s/%s", data, name);
    ours = !given[NAME];
    if (given[NAME] && stat(root, &seen) == 0)
        return 0;
    if (!given[IMAGE] || stat(given[IMAGE], &seen) != 0) {
        errno = given[IMAGE] ? errno : ENOENT;
        return fail("no image %s on this node, and registries are for the real one", given[IMAGE] ? given[IMAGE] : name);
    }
    char *make[] = {"mkdir", "-p", "-m", "700", data, NULL};
    char *copy[] = {"cp", "-a", given[IMAGE], root, NULL};
    char *unpack[] = {"unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-d", root, given[IMAGE], NULL};
    slurm_info(SAY "unpacking %s", given[IMAGE]);
    return run(make) || run(S_ISDIR(seen.st_mode) ? copy : unpack) ? -1 : 0;
}

int slurm_spank_exit(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    if (spank_context() != S_CTX_REMOTE || !root[0] || !ours)
        return 0;
    (void)sp;
    char *remove_all[] = {"rm", "-rf", "--one-file-system", root, NULL};
    return run(remove_all);
}

/* --- for each task, as the user, before its command ---------------------------------------------------------------- */

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) {
        fail("%s", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return close(fd);
}

/* The user alone is somebody inside, as with enroot; root needs no namespace for that. */
static int own_namespaces(void) {
    char text[64];
    uid_t inside = given[REMAP_ROOT] && !given[NO_REMAP_ROOT] ? 0 : uid;
    int ipc = given[UNSHARE] && strstr(given[UNSHARE], "ipc");
    if (unshare(CLONE_NEWNS | (uid ? CLONE_NEWUSER : 0) | (ipc ? CLONE_NEWIPC : 0)))
        return fail("unshare");
    if (uid) {
        prctl(PR_SET_DUMPABLE, 1); /* a process that has changed its user must not write its own maps */
        snprintf(text, sizeof text, "%u %u 1", inside, uid);
        if (put("/proc/self/uid_map", text) || put("/proc/self/setgroups", "deny"))
            return -1;
        snprintf(text, sizeof text, "%u %u 1", inside ? gid : 0, gid);
        if (put("/proc/self/gid_map", text))
            return -1;
    }
    return mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) ? fail("slave mounts") : 0;
}

/* A place for a mount: a directory, or a file for a file. */
static int place_for(const char *source, const char *target) {
    struct stat seen;
    char path[PATH_MAX];
    if (stat(source, &seen))
        return fail("%s cannot be mounted", source);
    snprintf(path, sizeof path, "%s", target);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    if (S_ISDIR(seen.st_mode))
        return mkdir(path, 0755) && errno != EEXIST ? fail("%s", path) : 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return fd < 0 ? fail("%s", path) : close(fd);
}

static int read_only(const char *target) {
    struct statvfs facts;
    unsigned long kept = 0;
    if (statvfs(target, &facts))
        return fail("%s", target);
    kept |= facts.f_flag & ST_NOSUID ? MS_NOSUID : 0;
    kept |= facts.f_flag & ST_NODEV ? MS_NODEV : 0;
    kept |= facts.f_flag & ST_NOEXEC ? MS_NOEXEC : 0;
    kept |= facts.f_flag & ST_RELATIME ? MS_RELATIME : 0;
    kept |= facts.f_flag & ST_NOATIME ? MS_NOATIME : 0;
    return mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | kept, NULL) ? fail("%s read-only", target) : 0;
}

static int bind_to(const char *source, const char *inside, const char *flags) {
    char target[PATH_MAX];
    snprintf(target, sizeof target, "%s%s", root, inside);
    if (place_for(source, target))
        return -1;
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL))
        return fail("failed to mount: %s at %s", source, target);
    if (mount(NULL, target, NULL, (strstr(flags, "slave") ? MS_SLAVE : MS_PRIVATE) | MS_REC, NULL))
        return fail("%s", target);
    for (const char *flag = flags; (flag = strstr(flag, "ro")); flag++)
        if ((flag == flags || strchr(",+", flag[-1])) && (!flag[2] || strchr(",+", flag[2])))
            return read_only(target);
    return 0;
}

static int tmpfs_at(const char *inside, const char *options) {
    char target[PATH_MAX];
    snprintf(target, sizeof target, "%s%s", root, inside);
    mkdir(target, 0755);
    return mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options) ? fail("%s", target) : 0;
}

static int fstabs(void) {
    struct dirent **found;
    int count = scandir(FSTABS, &found, NULL, alphasort), bad = 0;
    for (int number = 0; number < count; number++) {
        char path[PATH_MAX], line[PATH_MAX], source[1024], target[1024], type[64], options[1024];
        const char *end = strrchr(found[number]->d_name, '.');
        snprintf(path, sizeof path, FSTABS "/%s", found[number]->d_name);
        FILE *file = end && !strcmp(end, ".fstab") ? fopen(path, "re") : NULL;
        while (file && fgets(line, sizeof line, file)) {
            if (sscanf(line, "%1023s %1023s %63s %1023s", source, target, type, options) != 4 || source[0] != '/' ||
                target[0] != '/' || !strstr(options, "bind"))
                continue;
            if (strstr(options, "nofail") && access(source, F_OK))
                continue;
            bad |= bind_to(source, target, options);
        }
        if (file)
            fclose(file);
        free(found[number]);
    }
    if (count >= 0)
        free(found);
    return bad;
}

static int users_mounts(void) {
    char *list = given[MOUNTS] ? strdup(given[MOUNTS]) : NULL, *rest = list, *one;
    int bad = 0;
    while ((one = strsep(&rest, ",")) && !bad) {
        char *source = strsep(&one, ":"), *target = strsep(&one, ":");
        if (*source)
            bad = bind_to(source, target && *target == '/' ? target : source, one ? one : target && *target != '/' ? target : "");
    }
    free(list);
    return bad;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    char home[PATH_MAX] = "/";
    if (!root[0])
        return 0;
    spank_getenv(sp, "HOME", home, sizeof home);
    if (own_namespaces())
        return -1;
    if (mount(root, root, NULL, MS_BIND, NULL))
        return fail("%s", root);
    if (bind_to("/proc", "/proc", "slave") || bind_to("/sys", "/sys", "slave") || bind_to("/dev", "/dev", "slave"))
        return -1;
    if (given[UNSHARE] && strstr(given[UNSHARE], "ipc") && tmpfs_at("/dev/shm", "mode=1777"))
        return -1;
    if (tmpfs_at("/tmp", "mode=1777") || tmpfs_at("/run", "mode=755"))
        return -1;
    for (const char **file = (const char *[]){"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf", NULL}; *file; file++)
        if (access(*file, R_OK) == 0 && bind_to(*file, *file, "ro"))
            return -1;
    if (fstabs() || users_mounts())
        return -1;
    if (given[WORKDIR]) {
        snprintf(home, sizeof home, "%s", given[WORKDIR]);
    }
    if (!given[WRITABLE] && read_only(root))
        return -1;
    if (chdir(root) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
        return fail("%s as root", root);
    if (chdir(home)) {
        if (given[WORKDIR])
            return fail("couldn't chdir to %s", home);
        if (chdir("/"))
            return fail("/");
    }
    return 0;
}
