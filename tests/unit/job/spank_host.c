/* What slurmstepd is to a SPANK plugin: its calls in slurmstepd's order, the user's effective id over root's real one,
 * one forked task. The environment is the step's; SPANK_STEP is the step id.
 *
 *     spank_host PLUGIN UID [PLUGIN ARGUMENTS]
 *
 * The task prints its HPK_ variables and `started`; what a plugin tells the user goes to stderr. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

extern char **environ;
static uid_t user;

spank_context_t spank_context(void) { return S_CTX_REMOTE; }

spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
	return sp && option ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

spank_err_t spank_job_control_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	return sp && name && value && overwrite ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *text, int size)
{
	const char *value = getenv(name);

	if (!sp || !value)
		return ESPANK_ENV_NOEXIST;
	return snprintf(text, size, "%s", value) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
	return sp && !setenv(name, value, overwrite) ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list list;

	(void) sp;
	va_start(list, item);
	switch (item) {
	case S_JOB_ENV:
		*va_arg(list, char ***) = environ;
		break;
	case S_JOB_UID:
		*va_arg(list, uid_t *) = user;
		break;
	case S_JOB_GID:
		*va_arg(list, gid_t *) = user;
		break;
	case S_JOB_ID:
		*va_arg(list, uint32_t *) = 7;
		break;
	case S_JOB_STEPID:
		*va_arg(list, uint32_t *) = strtoul(getenv("SPANK_STEP"), NULL, 0);
		break;
	case S_JOB_LOCAL_TO_GLOBAL_ID:
		(void) va_arg(list, uint32_t);
		*va_arg(list, uint32_t *) = 4;
		break;
	default:
		return ESPANK_BAD_ARG;
	}
	va_end(list);
	return ESPANK_SUCCESS;
}

static void say(const char *format, va_list list)
{
	vfprintf(stderr, format, list);
	fputc('\n', stderr);
}

#define LOG(name) void name(const char *format, ...) { va_list l; va_start(l, format); say(format, l); va_end(l); }
LOG(slurm_spank_log)
LOG(slurm_error)

static void heard(int number)
{
	(void) number;
}

/* slurmstepd has signals of its own, whose handlers interrupt what waits. */
static void interrupt_for_ever(void)
{
	struct sigaction action = {.sa_handler = heard};
	struct itimerval every = {.it_interval.tv_usec = 5000, .it_value.tv_usec = 5000};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
}

int main(int argc, char **argv)
{
	void *plugin = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int (*call)(spank_t, int, char **), status = 0;
	const char *before[] = {"slurm_spank_init", "slurm_spank_init_post_opt", "slurm_spank_user_init"};
	int dummy;
	spank_t sp = (spank_t) &dummy;

	if (!plugin) {
		fprintf(stderr, "%s\n", dlerror());
		return 99;
	}
	user = atoi(argv[2]);
	if (setgroups(0, NULL) || setegid(user) || seteuid(user))
		return 98;
	if (getenv("SPANK_INTERRUPTED"))
		interrupt_for_ever();
	for (int i = 0; i < 3; i++) {
		call = (int (*)(spank_t, int, char **)) dlsym(plugin, before[i]);
		if (call)
			call(sp, argc - 3, argv + 3); /* of an `optional` plugin nothing comes of a failure */
	}
	fflush(NULL);
	if (!fork()) {
		call = (int (*)(spank_t, int, char **)) dlsym(plugin, "slurm_spank_task_init");
		if (call)
			call(sp, argc - 3, argv + 3);
		for (char **one = environ; *one; one++)
			if (!strncmp(*one, "HPK_", 4))
				puts(*one);
		puts("started");
		exit(0);
	}
	wait(&status);
	return WEXITSTATUS(status);
}
