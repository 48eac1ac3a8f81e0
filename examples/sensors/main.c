/* Reads windows in the layout of test.csv from standard input and prints, in the layout of predictions.csv, the class
   of each and the probabilities. On a device, a loop over the sensor takes the place of the loop over lines. */
#include <stdio.h>
#include <string.h>
#include "model.h"

/* The outputs in the order that `evenflow export` prints. */
static const char *const names[MODEL_OUTPUTS] = {"climbing", "resting", "running", "walking"};

static void print_answer(const char *sequence, const model_state *state) {
    float y[MODEL_OUTPUTS];
    int best = 0;
    model_result(state, y);
    for (int i = 1; i < MODEL_OUTPUTS; i++)
        if (y[i] > y[best]) best = i;
    printf("%s,%s", sequence, names[best]);
    for (int i = 0; i < MODEL_OUTPUTS; i++) printf(",%.7g", y[i]);
    printf("\n");
}

int main(void) {
    char line[256], sequence[32], current[32] = "";
    float x[MODEL_INPUTS]; /* ax, ay, az in g: the model scales them itself */
    model_state state;
    int number = 1;
    printf("sequence,prediction");
    for (int i = 0; i < MODEL_OUTPUTS; i++) printf(",probability_%s", names[i]);
    printf("\n");
    if (!fgets(line, sizeof line, stdin)) return 1; /* the names of the columns */
    while (fgets(line, sizeof line, stdin)) {
        number++;
        if (sscanf(line, "%31[^,],%*[^,],%*f,%f,%f,%f", sequence, &x[0], &x[1], &x[2]) != 4) {
            fprintf(stderr, "line %d is not: sequence,person,time,ax,ay,az\n", number);
            return 1;
        }
        if (strcmp(sequence, current) != 0) { /* a new window begins */
            if (*current) print_answer(current, &state);
            strcpy(current, sequence);
            model_init(&state);
        }
        model_step(&state, x);
    }
    if (*current) print_answer(current, &state);
    return 0;
}
