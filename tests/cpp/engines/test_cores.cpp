// The quota of a control group, as files of /proc and /sys say it: the cases of tests/runtime/test_workers.py.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "cores.hpp"
#include "repository.hpp"

namespace fs = std::filesystem;
using txport::core::quota;

namespace {

struct Case {
  std::string groups;                        // /proc/self/cgroup
  std::map<std::string, std::string> files;  // below /sys/fs/cgroup
  int expected;
};

const std::map<std::string, Case> kCases{
    {"none", {"", {}, 0}},
    {"no limit", {"0::/\n", {{"cpu.max", "max 100000\n"}}, 0}},
    {"a container", {"0::/\n", {{"cpu.max", "150000 100000\n"}}, 2}},
    {"a group within a group",
     {"0::/a/b\n", {{"a/cpu.max", "300000 100000\n"}, {"a/b/cpu.max", "800000 100000\n"}}, 3}},
    {"a path of the host", {"0::/docker/5\n", {{"cpu.max", "50000 100000\n"}}, 1}},
    {"version 1",
     {"2:cpuset:/x\n1:cpu,cpuacct:/x\n0::/\n",
      {{"cpu,cpuacct/x/cpu.cfs_quota_us", "400000\n"}, {"cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"}},
      4}},
    {"version 1 without a limit",
     {"1:cpu:/\n", {{"cpu/cpu.cfs_quota_us", "-1\n"}, {"cpu/cpu.cfs_period_us", "100000\n"}}, 0}},
    {"what no kernel writes", {"nonsense\n0::/a\n", {{"a/cpu.max", "\n"}, {"cpu.max", "200000 100000\n"}}, 2}},
};

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("the quota of a control group") {
  for (const auto& named : kCases) {
    CAPTURE(named.first);
    const Case& each = named.second;
    const Scratch root;
    write(root.path() / "proc/self/cgroup", each.groups);
    for (const auto& [file, text] : each.files) write(root.path() / "sys/fs/cgroup" / file, text);
    CHECK(quota(root.path()) == each.expected);
  }
}

TEST_CASE("without control groups nothing is limited") {
  const Scratch root;
  CHECK(quota(root.path()) == 0);
  const int usable = txport::core::usable_cores();
  const int limited = txport::core::limited_cores();
  CHECK(usable >= 1);
  CHECK((limited == 0 || limited == usable));
}
