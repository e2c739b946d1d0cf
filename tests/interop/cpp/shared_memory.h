// Memory for logits that the server has as well: a named file, or a sealed file that has no name. Linux.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

#include "logitd/v1/service.pb.h"

namespace logitd {

inline int Checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// Pages of a file, mapped. Writes to them are seen by the server at once.
class SharedMemory {
 public:
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  virtual ~SharedMemory() {
    if (data_ != MAP_FAILED) munmap(data_, size_);
    close(descriptor_);
  }

  void* data() const { return data_; }

  // What registers it with a server.
  virtual v1::RegisterSharedMemoryRequest Registration() = 0;

 protected:
  SharedMemory(int descriptor, size_t size) : descriptor_(descriptor), size_(size) {
    Checked(-posix_fallocate(descriptor, 0, size), "posix_fallocate");
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }

  const int descriptor_;
  const size_t size_;

 private:
  void* data_ = MAP_FAILED;
};

// A file in the directory that the server was given as --shared-memory-dir.
class NamedFile : public SharedMemory {
 public:
  NamedFile(const std::string& directory, const std::string& name, size_t size)
      : SharedMemory(Open(directory + "/" + name), size), name_(name), path_(directory + "/" + name) {}
  ~NamedFile() override { unlink(path_.c_str()); }

  v1::RegisterSharedMemoryRequest Registration() override {
    v1::RegisterSharedMemoryRequest request;
    request.set_file_name(name_);
    request.set_byte_size(size_);
    return request;
  }

 private:
  static int Open(const std::string& path) {
    const int descriptor = Checked(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0660), path.c_str());
    flock(descriptor, LOCK_SH);  // a starting server removes files logitd-* that nobody holds
    return descriptor;
  }

  const std::string name_, path_;
};

// A file without a name. Its descriptor goes over the side socket, beside the server's Unix socket; the server keeps
// the region for as long as that connection is open.
class MemoryFile : public SharedMemory {
 public:
  MemoryFile(const std::string& unix_socket, size_t size)
      : SharedMemory(Checked(memfd_create("logits", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create"), size),
        side_socket_(Checked(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")) {
    Checked(fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), "F_ADD_SEALS");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = unix_socket + ".memory";
    if (path.size() >= sizeof(address.sun_path)) throw std::invalid_argument("the socket's path is too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    Checked(connect(side_socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), path.c_str());
  }
  ~MemoryFile() override { close(side_socket_); }

  v1::RegisterSharedMemoryRequest Registration() override {
    SendDescriptor();
    std::string token(16, '\0');
    if (recv(side_socket_, token.data(), token.size(), MSG_WAITALL) != static_cast<ssize_t>(token.size()))
      throw std::runtime_error("the server did not take the memory file");
    v1::RegisterSharedMemoryRequest request;
    request.set_memory_file_token(token);
    request.set_byte_size(size_);
    return request;
  }

 private:
  // One byte, 1, and the descriptor as SCM_RIGHTS.
  void SendDescriptor() {
    char greeting = 1;
    iovec bytes{&greeting, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor_, sizeof(int));
    Checked(sendmsg(side_socket_, &message, 0), "sendmsg");
  }

  const int side_socket_;
};

}  // namespace logitd
