// The program with the toy's models and task in it.
#include "cli/cli.h"
#include "contextpool/models/registry.h"
#include "toy/toy.h"

int main(int count, char** words) {
  contextpool::models::register_family(contextpool::toy::family());
  contextpool::tasks::register_task(contextpool::toy::task());
  return contextpool::cli::run({words + 1, words + count});
}
