/* The only file of an image: `tool work FILE` writes a result, `tool fail` ends with 7, `tool wait` waits to be killed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    const char *results = getenv("OARLOCK_RESULTS");
    char path[4096];
    FILE *file;

    printf("%s in an image with one file, user %d\n", count > 1 ? words[1] : "nothing", (int)getuid());
    fflush(stdout);
    if (count > 1 && !strcmp(words[1], "wait"))
        for (int second = 0; second < 600; second++)
            sleep(1);
    if (count > 2 && results) {
        snprintf(path, sizeof path, "%s/%s", results, words[2]);
        file = fopen(path, "w");
        if (!file || fputs("made by the tool\n", file) < 0 || fclose(file))
            return 1;
    }
    return count > 1 && !strcmp(words[1], "work") ? 0 : 7;
}
