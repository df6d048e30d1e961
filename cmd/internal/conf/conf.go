package conf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"
)

// Resolve sets the flags that the command line left alone from the environment (prefix and the flag's name in
// capitals with _ for -), and then from the TOML file that *file names once the environment was read (the flag's
// name with _ for -). sections are tables of the file beside the flags: each is decoded into its pointer. Keys of
// the file that mean nothing are refused with their line.
func Resolve(flags *pflag.FlagSet, prefix string, file *string, env func(string) (string, bool), sections map[string]any) error {
	var errs []error
	set := map[string]bool{}
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
	if err := errors.Join(errs...); err != nil || *file == "" {
		return err
	}
	return readFile(*file, flags, set, sections)
}

var errNoKey = errors.New("there is no such key; check its spelling")

func readFile(path string, flags *pflag.FlagSet, set map[string]bool, sections map[string]any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	var all map[string]toml.Primitive
	md, err := toml.Decode(string(raw), &all)
	if err != nil {
		var at toml.ParseError
		if errors.As(err, &at) {
			return fmt.Errorf("%s: line %d: %s", path, at.Position.Line, at.Message)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	refuse := func(key toml.Key, err error) error {
		return fmt.Errorf("%s: line %d: %s: %w", path, lineOf(string(raw), key), key, err)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name := strings.ReplaceAll(key, "_", "-")
		flag := flags.Lookup(name)
		switch {
		case sections[key] != nil:
			err = md.PrimitiveDecode(all[key], sections[key])
		case flag == nil || strings.Contains(key, "-") || name == "config" || name == "help":
			err = errNoKey
		default:
			err = setFlag(flags, flag, md, all[key], set[name])
		}
		if err != nil {
			return refuse(toml.Key{key}, err)
		}
	}
	for _, key := range md.Undecoded() {
		return refuse(key, errNoKey)
	}
	return nil
}

// setFlag gives a flag the file's value unless something stronger has set it.
func setFlag(flags *pflag.FlagSet, flag *pflag.Flag, md toml.MetaData, value toml.Primitive, done bool) error {
	var text string
	switch flag.Value.Type() {
	case "stringSlice":
		var list []string
		if err := md.PrimitiveDecode(value, &list); err != nil {
			return err
		}
		text = strings.Join(list, ",")
	case "stringToString":
		var table map[string]string
		if err := md.PrimitiveDecode(value, &table); err != nil {
			return err
		}
		var pairs []string
		for _, k := range slices.Sorted(maps.Keys(table)) {
			pairs = append(pairs, `"`+strings.ReplaceAll(k+"="+table[k], `"`, `""`)+`"`)
		}
		text = strings.Join(pairs, ",")
	default:
		var one any
		if err := md.PrimitiveDecode(value, &one); err != nil {
			return err
		}
		text = fmt.Sprint(one)
	}
	if done || text == "" {
		return nil
	}
	return flags.Set(flag.Name, text)
}

// lineOf finds the line on which a key stands, 0 if it is written in a way that only a parser finds.
func lineOf(text string, key toml.Key) int {
	table, last := strings.Join(key[:len(key)-1], "."), key[len(key)-1]
	at, n, here := 0, 0, ""
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			here = strings.Trim(line[:strings.LastIndex(line, "]")+1], "[] ")
			if here == key.String() || here == last && table == "" {
				return n
			}
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		if name = strings.Trim(strings.TrimSpace(name), `"'`); ok && here == table && name == last {
			return n
		}
		if ok && at == 0 && name == last {
			at = n
		}
	}
	return at
}
