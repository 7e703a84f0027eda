# What `cmake --install` brings: the program, completions, and the library with its header and
# pkg-config file. Included at the end of the top-level file.
include(GNUInstallDirs)

install(TARGETS quern RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# ---- shell completions come out of the program itself ----
set(completions ${CMAKE_BINARY_DIR}/completions)
file(MAKE_DIRECTORY ${completions})
add_custom_command(OUTPUT ${completions}/quern ${completions}/_quern ${completions}/quern.fish
  COMMAND quern completion bash > ${completions}/quern
  COMMAND quern completion zsh > ${completions}/_quern
  COMMAND quern completion fish > ${completions}/quern.fish
  DEPENDS quern VERBATIM)
add_custom_target(completions ALL DEPENDS ${completions}/quern ${completions}/_quern ${completions}/quern.fish)
install(FILES ${completions}/quern DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${completions}/_quern DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${completions}/quern.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# ---- the library: every room up to the engine, as one archive and one shared object ----
if(EXISTS ${CMAKE_SOURCE_DIR}/include/quern.h)
  set(objects "")
  foreach(room core format compute text model cache sample engine)
    list(APPEND objects $<TARGET_OBJECTS:qn_${room}>)
  endforeach()
  add_library(quern_static STATIC ${objects})
  add_library(quern_shared SHARED ${objects})
  set_target_properties(quern_static quern_shared PROPERTIES OUTPUT_NAME quern LINKER_LANGUAGE C)
  set_target_properties(quern_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_libraries(quern_shared PRIVATE PkgConfig::JANSSON PkgConfig::CRYPTO PkgConfig::XXHASH
    PkgConfig::PCRE2 PkgConfig::UTF8PROC Threads::Threads m)
  if(NOT QN_SANITIZE)
    target_link_options(quern_shared PRIVATE LINKER:--no-undefined)
  endif()
  configure_file(${CMAKE_SOURCE_DIR}/cmake/quern.pc.in ${CMAKE_BINARY_DIR}/quern.pc @ONLY)
  install(TARGETS quern_static quern_shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${CMAKE_SOURCE_DIR}/include/quern.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${CMAKE_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
