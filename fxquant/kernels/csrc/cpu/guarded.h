// No exception may reach ctypes: calls as functions that tell whether they succeeded.
#pragma once
#include <exception>
#include <new>

namespace fxquant {

// What fxquant_failure() says from now on in this thread; it cannot fail itself.
void note_failure(const char* reason);

// What `call` gives, or `otherwise` where it throws.
template <typename T, typename Call>
T guarded(T otherwise, const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    note_failure("there is not enough memory");
  } catch (const std::exception& error) {
    note_failure(error.what());
  } catch (...) {
    note_failure("an error of an unknown kind");
  }
  return otherwise;
}

template <typename Call>
bool succeeds(const Call& call) {
  return guarded(false, [&] {
    call();
    return true;
  });
}

}  // namespace fxquant
