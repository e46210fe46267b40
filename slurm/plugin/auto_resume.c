/* auto_resume: SPANK plugin that makes `--auto-resume[=0|1|N]` a legal option of sbatch, salloc and srun and of
 * #SBATCH lines, and has one checkpoint chosen for all ranks of a bare srun.
 *
 * build:         cc -shared -fPIC -O2 -Wall -o auto_resume.so auto_resume.c      (needs slurm/spank.h of this very Slurm)
 * plugstack.conf: optional /opt/hyperpod-kit/spank/auto_resume.so [contexts=allocator,local,remote] [prolog=PATH]
 *
 * Always `optional`, and no path in here fails a launch except a value that means nothing. Where HyperPod's own plugin
 * owns the option of srun, `contexts=allocator` leaves srun to it. The choice reaches the job as HPK_AUTO_RESUME and,
 * also with --export=NONE, as SLURM_SPANK_HPK_AUTO_RESUME; Prolog and Epilog see SPANK_HPK_AUTO_RESUME.
 *
 * The checkpoint of a bare srun is chosen by task_prolog.sh. Slurm's own TaskProlog cannot run it: with pyxis that runs
 * inside of the container, where neither the program nor Python need be, and then no task of anybody starts. slurmstepd
 * calls slurm_spank_user_init before that, outside, whatever the order in plugstack.conf; `contexts=` is about the
 * option alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(hyperpod_kit_auto_resume, 1);

#define VARIABLE "HPK_AUTO_RESUME"
#define MAX_RESTARTS 1000
#define PROLOG "/opt/hyperpod-kit/current/slurm/task_prolog.sh"
#define DECISION "HPK_DECISION"
#define ANSWERED "HPK_RESUME_"
#define DEADLINE 60 /* seconds; the script gives up earlier by itself unless its storage hangs in the kernel */
#define ANSWER_MAX 65536
#ifndef SLURM_MAX_NORMAL_STEP_ID
#define SLURM_MAX_NORMAL_STEP_ID 0xfffffff0
#endif

static int chosen = -1; /* -1: the option was not given */
static int refused;	/* no checkpoint could be chosen: the tasks of this step must not start */

static int option_given(int val, const char *optarg, int remote)
{
	char *end = NULL;
	long number;

	(void) val;
	(void) remote;
	/* A bare --auto-resume reaches the srun inside of a job as the text "(null)" on Slurm 22.05. */
	if (!optarg || !*optarg || !strcmp(optarg, "(null)")) {
		chosen = 1;
		return 0;
	}
	errno = 0;
	number = strtol(optarg, &end, 10);
	if (errno || end == optarg || *end || number < 0 || number > MAX_RESTARTS) {
		slurm_error("--auto-resume: '%s' is not 0 (off), 1 (on) or a number of restarts up to %d",
			    optarg, MAX_RESTARTS);
		return -1;
	}
	chosen = (int) number;
	return 0;
}

static struct spank_option option = {
	.name = "auto-resume",
	.arginfo = "0|1|N",
	.usage = "resume from the newest valid checkpoint after a failure (hyperpod-kit)",
	.has_arg = 2, /* optional */
	.val = 0,
	.cb = (spank_opt_cb_f) option_given,
};

/* Whether plugstack.conf leaves this context to us: everything, unless `contexts=` names some. */
static int context_wanted(int ac, char **av, const char *name)
{
	size_t length = strlen(name);

	for (int i = 0; i < ac; i++) {
		if (strncmp(av[i], "contexts=", 9))
			continue;
		for (const char *p = av[i] + 9; p; p = strchr(p, ',')) {
			p += (*p == ',');
			if (!strncmp(p, name, length) && (p[length] == ',' || !p[length]))
				return 1;
		}
		return 0;
	}
	return 1;
}

static const char *context_name(void)
{
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		return "allocator";
	case S_CTX_LOCAL:
		return "local";
	case S_CTX_REMOTE:
		return "remote";
	default:
		return NULL;
	}
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	const char *name = context_name();

	if (name && context_wanted(ac, av, name) && spank_option_register(sp, &option) != ESPANK_SUCCESS)
		slurm_error("hyperpod-kit: cannot register --auto-resume");
	return 0;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	char text[16];
	spank_context_t context = spank_context();

	(void) ac;
	(void) av;
	if (chosen < 0 || (context != S_CTX_ALLOCATOR && context != S_CTX_LOCAL))
		return 0;
	snprintf(text, sizeof text, "%d", chosen);
	setenv(VARIABLE, text, 1); /* sbatch copies its own environment into the job */
	if (spank_job_control_setenv(sp, VARIABLE, text, 1) != ESPANK_SUCCESS)
		slurm_error("hyperpod-kit: the hooks will not see --auto-resume");
	return 0;
}

static void step_variable(spank_t sp, const char *name, char *text, int size)
{
	if (spank_getenv(sp, name, text, size) != ESPANK_SUCCESS)
		text[0] = '\0';
}

/* A step of srun that says where its checkpoints lie, does not refuse auto-resume, and is not one of `job run`. */
static int wants_decision(spank_t sp, uint32_t *step)
{
	char asked[16], text[16], root[4096];

	if (spank_context() != S_CTX_REMOTE || spank_get_item(sp, S_JOB_STEPID, step) != ESPANK_SUCCESS ||
	    *step > SLURM_MAX_NORMAL_STEP_ID)
		return 0;
	step_variable(sp, VARIABLE, asked, sizeof asked);
	if (!*asked)
		step_variable(sp, "SLURM_SPANK_" VARIABLE, asked, sizeof asked);
	if (!strcmp(asked, "0"))
		return 0;
	step_variable(sp, "HPK_ATTEMPT", text, sizeof text);
	/* Text that does not fit is there all the same. */
	if (*text || spank_getenv(sp, "HPK_ATTEMPT", text, sizeof text) == ESPANK_NOSPACE)
		return 0;
	step_variable(sp, "HPK_CHECKPOINT_ROOT", root, sizeof root);
	return *root || spank_getenv(sp, "HPK_CHECKPOINT_ROOT", root, sizeof root) == ESPANK_NOSPACE;
}

/* The step's environment, with `more` in place of what has these names there. NULL without memory. */
static char **environment(spank_t sp, char **more, size_t count)
{
	char **given = NULL, **made;
	size_t length = 0, at = 0;

	if (spank_get_item(sp, S_JOB_ENV, &given) != ESPANK_SUCCESS || !given)
		return NULL;
	while (given[length])
		length++;
	made = calloc(length + count + 1, sizeof *made);
	if (!made)
		return NULL;
	for (size_t i = 0; i < count; i++)
		made[at++] = more[i];
	for (size_t i = 0; i < length; i++) {
		size_t k = 0;

		while (k < count && strncmp(given[i], more[k], strchr(more[k], '=') - more[k] + 1))
			k++;
		if (k == count)
			made[at++] = given[i];
	}
	return made;
}

/* In the child: slurmstepd is root here under the user's effective id, and the program must be the user's altogether. */
static void become(const char *program, uid_t uid, gid_t gid, int out, char **env)
{
	char *argv[] = {(char *) program, NULL};
	sigset_t none;
	int null = open("/dev/null", O_RDWR), score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (score >= 0 && write(score, "0", 1) < 0)
		score = -1; /* slurmstepd's own protection is not the user's; without it nothing is lost */
	if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0)
		_exit(126);
#ifdef SYS_close_range
	syscall(SYS_close_range, 3, ~0U, 0);
#endif
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setpgid(0, 0);
	if (setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
		_exit(126);
	execve(program, argv, env);
	_exit(127);
}

static long left_of(const struct timespec *end)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (end->tv_sec - now.tv_sec) * 1000 + (end->tv_nsec - now.tv_nsec) / 1000000;
}

/* Wait status of `program`, with what it printed in `answer`; -1 when it did not end in time, and is left alone then:
 * what hangs in the kernel cannot be waited for. */
static int ask(const char *program, uid_t uid, gid_t gid, char **env, char *answer)
{
	struct timespec end;
	size_t length = 0;
	int fds[2], status = -1;
	pid_t child, ended = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += DEADLINE;
	answer[0] = '\0';
	if (pipe2(fds, O_CLOEXEC))
		return -1;
	child = fork();
	if (child == 0)
		become(program, uid, gid, fds[1], env);
	close(fds[1]);
	while (child > 0 && left_of(&end) > 0) {
		struct pollfd one = {.fd = fds[0], .events = POLLIN};
		ssize_t got = poll(&one, 1, (int) left_of(&end));

		if (got > 0)
			got = read(fds[0], answer + length, ANSWER_MAX - 1 - length);
		if (got < 0 && errno == EINTR)
			continue; /* a signal of slurmstepd's own is no word on the answer */
		if (got <= 0)
			break;
		length += got;
	}
	answer[length] = '\0';
	close(fds[0]);
	while (child > 0 && !(ended = waitpid(child, &status, WNOHANG)) && left_of(&end) > 0)
		usleep(2000);
	if (child > 0 && ended == child)
		return status;
	if (child > 0)
		kill(-child, SIGKILL);
	return -1;
}

/* Whether a text is one line that any terminal and any shell takes for what it is. */
static int plain(const char *text)
{
	for (; *text; text++)
		if ((unsigned char) *text < ' ' || *text == 0x7f)
			return 0;
	return 1;
}

/* Whether a name is HPK_RESUME_ and capital letters: nothing else is for an answer to set. */
static int ours(const char *name)
{
	return !strncmp(name, ANSWERED, strlen(ANSWERED)) && name[strlen(ANSWERED)] &&
	       !name[strlen(ANSWERED) + strspn(name + strlen(ANSWERED), "ABCDEFGHIJKLMNOPQRSTUVWXYZ_")];
}

/* The answer's lines: what TaskProlog's would mean to Slurm, for variables of ours only. */
static void apply(spank_t sp, char *answer)
{
	char *rest = NULL;

	for (char *line = strtok_r(answer, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *value = strchr(line, '=');

		if (!strncmp(line, "print ", 6)) {
			for (char *p = line; *p; p++)
				if ((unsigned char) *p < ' ' || *p == 0x7f)
					*p = ' ';
			slurm_spank_log("%s", line + 6);
		} else if (!strncmp(line, "export HPK_", 11) && value) {
			*value = '\0';
			if (!ours(line + 7) || !plain(value + 1)) {
				refused = 1;
				slurm_error("hyperpod-kit: the answer for this step has a control character, or is for a "
					    "variable that is not " ANSWERED "*: no task starts");
			} else if (spank_setenv(sp, line + 7, value + 1, 1) != ESPANK_SUCCESS) {
				refused = 1;
			}
		}
	}
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	const char *program = PROLOG;
	char step_text[40], rank_text[40], key[64], *answer, **env;
	char *more[] = {step_text, rank_text};
	uint32_t job = 0, step = 0, rank = 1;
	uid_t uid = 0;
	gid_t gid = 0;
	int status;

	if (!wants_decision(sp, &step))
		return 0;
	for (int i = 0; i < ac; i++)
		if (!strncmp(av[i], "prolog=", 7))
			program = av[i] + 7;
	spank_get_item(sp, S_JOB_LOCAL_TO_GLOBAL_ID, (uint32_t) 0, &rank);
	snprintf(step_text, sizeof step_text, "SLURM_STEP_ID=%u", step);
	snprintf(rank_text, sizeof rank_text, "SLURM_PROCID=%u", rank);
	answer = malloc(ANSWER_MAX);
	env = environment(sp, more, 2);
	if (!answer || !env || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &gid) != ESPANK_SUCCESS) {
		refused = 1;
		slurm_error("hyperpod-kit: cannot read this step; it is not started, HPK_AUTO_RESUME=0 starts it as it is");
	} else {
		status = ask(program, uid, gid, env, answer);
		if (status < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
			refused = 1;
			if (!strstr(answer, "print "))
				slurm_error("hyperpod-kit: %s %s: no checkpoint was chosen and no task of this step starts, "
					    "for it would start from step 0. Look at this node; HPK_AUTO_RESUME=0 starts it "
					    "as it is", program, status < 0 ? "did not end in time" : "failed");
		}
		apply(sp, answer);
		snprintf(key, sizeof key, "%u.%u", job, step);
		spank_setenv(sp, DECISION, key, 1); /* a TaskProlog that is still configured need not ask again */
	}
	free(answer);
	free(env);
	return 0;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void) sp;
	(void) ac;
	(void) av;
	if (refused)
		_exit(1); /* what an `optional` plugin returns ends nothing */
	return 0;
}
