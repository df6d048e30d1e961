package node

import "runtime/debug"

// version is what the build knows of itself; "devel" when it knows nothing.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
