// A table of experiments as data: for each scale a recipe, rows that differ from each other by a few flags, and what is
// claimed of them. A run of it is one row with one seed,
//
//   contextpool train <recipe.train> <row.flags> --seed S ...
//
// then the commands that score it. A new table is a function that returns one, in a file of tables/, and a line in
// tables.cpp.
//
// In flags and commands {run} stands for the run's folder and {NAME} for the file or folder of the data of that role.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reproduce/statistics.h"

namespace contextpool::reproduce {

// Data that a recipe needs and a user has.
struct Role {
  std::string name = {};                // "text"
  std::string what = {};                // "any text file, its first 90 % to train on"
  std::vector<std::string> files = {};  // names it is known by in a folder; of a folder, the files that must be in it
  bool folder = false;
  // What tells the data that the paper used from all others; nothing where any will do.
  std::int64_t bytes = 0;
  std::string opening = {};
};

struct Score {
  std::string name = {};     // "test bpc"
  std::string command = {};  // of this program, printing JSON; empty: the last line of the training log that has it
  std::string pointer = {};  // to the figure in that JSON (RFC 6901)
  double factor = 1;
  int digits = 3;
  bool lower_is_better = true;
};

struct Recipe {
  std::string train = {};                // flags of every row
  std::vector<std::string> before = {};  // commands between training and scoring
  std::vector<Score> scores = {};        // the first is the one that rows are compared by
  std::vector<Role> data = {};
  std::string described = {};   // for the title: "preset spec-lm"
  std::string stands_for = {};  // the data of the paper that others stand in for; empty: these are the paper's
  std::vector<std::int64_t> seeds = {1, 2, 3};
};

struct Row {
  std::string name = {};  // of folders and --rows: "cp-8"
  std::string label;      // "ContextPool at O, 8 groups"
  std::string flags;
  std::string against = {};                  // the row that it is compared with; empty: the first
  std::map<std::string, double> paper = {};  // the paper's figure of a score, where it has one
};

// "row is better than `than` by that score": below it where lower is better.
struct Claim {
  std::string text;
  std::string row, than;
  std::string score = {};  // empty: the first
};

struct Plan {
  std::string scale;  // smoke, demo, quick, small or paper
  Recipe recipe;
  std::vector<Row> rows;
  std::vector<Claim> claims;
};

struct Table {
  std::string name, title;
  std::vector<Plan> plans;
};

const std::vector<Table>& tables();
// Throw c10::Error, with the nearest name, if there is none.
const Table& find_table(const std::string& name);
const Plan& find_plan(const Table& table, const std::string& scale);
const Row& find_row(const Plan& plan, const std::string& name);

// Throws std::logic_error at a table that contradicts itself: two rows of one name, a claim about a row that is not
// there.
void check(const Table& table);

}  // namespace contextpool::reproduce
