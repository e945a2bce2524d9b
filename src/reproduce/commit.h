// Which commit the program was built from, "+" after it where files differed; empty where that was not known.
#pragma once

namespace contextpool::reproduce {

const char* commit();

}  // namespace contextpool::reproduce
