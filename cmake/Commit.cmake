# cmake -DSOURCE=... -DOUTPUT=... -P Commit.cmake: a source file that says which commit this tree is of, with "+" where
# files differ from it; empty where there is no repository. Written only where it changes.
find_program(_git git)
set(_commit "")
if(_git AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND "${_git}" -C "${SOURCE}" describe --always --dirty=+ --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE _commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#include \"reproduce/commit.h\"

namespace contextpool::reproduce {

const char* commit() { return \"${_commit}\"; }

}  // namespace contextpool::reproduce
")
