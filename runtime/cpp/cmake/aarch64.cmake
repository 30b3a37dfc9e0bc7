# Cross-build for 64-bit ARM with Debian's or Ubuntu's g++-aarch64-linux-gnu: README.md has the recipe.
#
# TXPORT_SYSROOT (absolute) is a root folder with libraries for the device and their headers. They are looked for there
# and in ONNXRUNTIME_ROOT, TENSORRT_ROOT, CUDA_ROOT and HIGHWAY_ROOT alone; the C and C++ libraries themselves are the compiler's.
# Where qemu-user is installed, ctest runs the tests with it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TXPORT_SYSROOT)
if(NOT IS_ABSOLUTE "${TXPORT_SYSROOT}" OR NOT IS_DIRECTORY "${TXPORT_SYSROOT}/usr/lib/aarch64-linux-gnu")
  message(FATAL_ERROR "TXPORT_SYSROOT is '${TXPORT_SYSROOT}': give the absolute path of a folder with usr/lib/aarch64-linux-gnu")
endif()
set(CMAKE_FIND_ROOT_PATH "${TXPORT_SYSROOT}" ${ONNXRUNTIME_ROOT} ${TENSORRT_ROOT} ${CUDA_ROOT}
  ${HIGHWAY_ROOT} $ENV{HIGHWAY_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind INCLUDE LIBRARY PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
# What those libraries need themselves.
foreach(kind EXE SHARED)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT
    "-Wl,-rpath-link,${TXPORT_SYSROOT}/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,${TXPORT_SYSROOT}/lib/aarch64-linux-gnu")
endforeach()

find_program(TXPORT_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
mark_as_advanced(TXPORT_QEMU)
if(TXPORT_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${TXPORT_QEMU};-L;${TXPORT_SYSROOT}")
endif()
