/* auto_resume: SPANK plugin that makes `--auto-resume[=0|1|N]` a legal option of sbatch, salloc and srun and of
 * #SBATCH lines. It only records the choice; `hyperpod-kit job run` and the TaskProlog act on it.
 *
 * build:         cc -shared -fPIC -O2 -Wall -o auto_resume.so auto_resume.c      (needs slurm/spank.h of this very Slurm)
 * plugstack.conf: optional /opt/hyperpod-kit/spank/auto_resume.so [contexts=allocator,local,remote]
 *
 * Always `optional`, and no path in here fails a launch except a value that means nothing. Where HyperPod's own plugin
 * owns the option of srun, `contexts=allocator` leaves srun to it. The choice reaches the job as HPK_AUTO_RESUME and,
 * also with --export=NONE, as SLURM_SPANK_HPK_AUTO_RESUME; Prolog and Epilog see SPANK_HPK_AUTO_RESUME.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(hyperpod_kit_auto_resume, 1);

#define VARIABLE "HPK_AUTO_RESUME"
#define MAX_RESTARTS 1000

static int chosen = -1; /* -1: the option was not given */

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
