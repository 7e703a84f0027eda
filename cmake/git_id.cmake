# Write the commit into a header, at build time, touching the file only when it changes.
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE id
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT id)
  set(id unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "/* made by cmake/git_id.cmake */\n#define QN_GIT \"${id}\"\n")
