// Package conf gives a command's flags three more sources: the environment and a TOML file, under the flag's own
// name. A flag wins over the environment, that over the file, and that over the default.
package conf
