/* Stand-in of HyperPod's SPANK plugin: `srun --auto-resume=1`, and that only; sbatch and salloc have no such option.
 *
 * build: cc -shared -fPIC -O2 -Wall -o hyperpod_auto_resume.so plugin.c       (spank.h of this very Slurm)
 * plugstack.conf: optional /opt/sagemaker_cluster/hyperpod_auto_resume.so
 *
 * On the side of srun its place is taken by a program (retry.py) that starts srun once more below itself, and again
 * when HyperPod's cluster agent says so: same process id, same arguments, same environment. On the nodes each task says
 * that it starts, and the first one that fails has the step ended, by a word to retry.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(hyperpod_auto_resume, 1);

#define BELOW "HYPERPOD_STANDIN_BELOW" /* the descriptor on which retry.py hears which step its srun starts */
#define WATCH "HYPERPOD_STANDIN_WATCH" /* host:port at which it hears of a task that has failed */
#define PYTHON "/usr/bin/python3"
#define PROGRAM "/usr/lib/hyperpod-kit-rehearsal"
#define MAX_ARGS 4096

static int on, ended, supervised, report = -1;
static char watch[300];

static int option_given(int val, const char *optarg, int remote)
{
	(void) val;
	(void) remote;
	on = !optarg || !*optarg || !strcmp(optarg, "(null)") || atoi(optarg) != 0;
	return 0;
}

static struct spank_option option = {
	.name = "auto-resume",
	.arginfo = "0|1",
	.usage = "replace unhealthy nodes and retry the step (HyperPod, stand-in)",
	.has_arg = 1,
	.val = 0,
	.cb = (spank_opt_cb_f) option_given,
};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	(void) ac;
	(void) av;
	if (spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_REMOTE)
		spank_option_register(sp, &option);
	return 0;
}

/* Become retry.py with srun's own words behind it. Returns only when that fails: then srun goes on without retries. */
static void supervise(void)
{
	static char words[1 << 20], *argv[MAX_ARGS + 8];
	char own[4096];
	int count = 0, file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, words, sizeof words - 1);
	ssize_t exe = readlink("/proc/self/exe", own, sizeof own - 1);

	if (length <= 0 || exe <= 0)
		return;
	own[exe] = '\0';
	argv[count++] = "srun";
	argv[count++] = "-I";
	argv[count++] = "-S";
	argv[count++] = PROGRAM;
	argv[count++] = "auto-resume";
	argv[count++] = own;
	for (char *word = words; word < words + length && count < MAX_ARGS; word += strlen(word) + 1)
		if (word != words)
			argv[count++] = word;
	execv(PYTHON, argv);
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	const char *below = getenv(BELOW);

	(void) sp;
	(void) ac;
	(void) av;
	if (spank_context() != S_CTX_LOCAL || !on)
		return 0;
	if (below) {
		report = atoi(below);
		supervised = 1; /* a step over several components of a job comes here for each of them */
		unsetenv(BELOW);
	} else if (!supervised && getenv("SLURM_JOB_ID")) {
		supervise();
		slurm_error("[Auto Resume] Error: cannot start " PROGRAM);
	}
	return 0;
}

int slurm_spank_local_user_init(spank_t sp, int ac, char **av)
{
	uint32_t step = 0;

	(void) ac;
	(void) av;
	if (report >= 0 && spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS) {
		dprintf(report, "%u\n", step);
		close(report);
		report = -1;
	}
	return 0;
}

/* The ranks have the environment of the batch script and nothing else. */
int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	(void) ac;
	(void) av;
	if (on && spank_getenv(sp, WATCH, watch, sizeof watch) == ESPANK_SUCCESS)
		spank_unsetenv(sp, WATCH);
	return 0;
}

static void names(spank_t sp, uint32_t *job, uint32_t *step, uint32_t *task)
{
	spank_get_item(sp, S_JOB_ID, job);
	spank_get_item(sp, S_JOB_STEPID, step);
	spank_get_item(sp, S_TASK_GLOBAL_ID, task);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	uint32_t job = 0, step = 0, task = 0;

	(void) ac;
	(void) av;
	if (on) {
		names(sp, &job, &step, &task);
		slurm_spank_log("[Auto Resume] Info: JobID: %u StepID: %u TaskID: %u process_task_init", job, step, task);
	}
	return 0;
}

/* Say so to retry.py; 0 when it has heard it. */
static int tell(const char *words)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	struct timeval limit = {.tv_sec = 5};
	char *port = strrchr(watch, ':');
	int sock = -1, failed = -1;

	if (!port)
		return -1;
	*port = '\0';
	if (!getaddrinfo(watch, port + 1, &hints, &found)) {
		sock = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
		if (sock >= 0 && !connect(sock, found->ai_addr, found->ai_addrlen))
			failed = send(sock, words, strlen(words), MSG_NOSIGNAL) < 0;
		if (sock >= 0)
			close(sock);
		freeaddrinfo(found);
	}
	*port = ':';
	return failed;
}

/* A task has failed: all others of the step are ended. */
int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
	uint32_t job = 0, step = 0, task = 0;
	int status = 0;
	char host[256] = "";

	(void) ac;
	(void) av;
	if (!on || ended || spank_get_item(sp, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS || !status)
		return 0;
	ended = 1;
	names(sp, &job, &step, &task);
	gethostname(host, sizeof host - 1);
	slurm_spank_log("[Auto Resume] Error: JobID: %u StepID: %u TaskID: %u Task failed on node %s", job, step, task,
			host);
	if (!tell("failed\n"))
		slurm_spank_log("[Auto Resume] Info: JobID: %u StepID: %u TaskID: %u Successfully terminated the step "
				"since task exited with status: %d", job, step, task, status);
	return 0;
}
