package conf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"
)

// Resolve sets the flags that the command line left alone from the environment (prefix and the flag's name in
// capitals) and then from the file, where there is one (the flag's name with _ for -). Keys of the file that mean
// nothing are refused with their line.
func Resolve(flags *pflag.FlagSet, prefix, file string, env func(string) (string, bool)) error {
	set := map[string]bool{}
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if set[f.Name] = f.Changed; f.Changed || f.Name == "help" {
			return
		}
		name := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := env(name); ok && value != "" {
			set[f.Name] = true
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
			}
		}
	})
	if err := errors.Join(errs...); err != nil || file == "" {
		return err
	}
	return fromFile(flags, file, set)
}

func fromFile(flags *pflag.FlagSet, file string, set map[string]bool) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	var all map[string]any
	meta, err := toml.Decode(string(raw), &all)
	if err != nil {
		var at toml.ParseError
		if errors.As(err, &at) {
			return fmt.Errorf("%s: line %d: %s", file, at.Position.Line, at.Message)
		}
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, key := range meta.Keys() {
		name := strings.ReplaceAll(key.String(), "_", "-")
		flag := flags.Lookup(name)
		if flag == nil || strings.Contains(key.String(), "-") || name == "config" || name == "help" {
			return fmt.Errorf("%s: line %d: there is no key %s; check its spelling", file, line(string(raw), key.String()), key)
		}
		if set[name] {
			continue
		}
		if err := flags.Set(name, text(all[key.String()])); err != nil {
			return fmt.Errorf("%s: line %d: %s: %w", file, line(string(raw), key.String()), key, err)
		}
	}
	return nil
}

func text(value any) string {
	list, ok := value.([]any)
	if !ok {
		return fmt.Sprint(value)
	}
	var parts []string
	for _, one := range list {
		parts = append(parts, fmt.Sprint(one))
	}
	return strings.Join(parts, ",")
}

// line finds where a key stands.
func line(text, key string) int {
	n := 0
	for l := range strings.Lines(text) {
		n++
		if name, _, ok := strings.Cut(l, "="); ok && strings.TrimSpace(name) == key {
			return n
		}
	}
	return 0
}
