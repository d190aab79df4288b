package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// configVariable overrides the path of the user's configuration file. With the value "off" there is none.
const configVariable = "NFQPROXY_CONFIG"

// userConfig is the user's configuration file: defaults for the flags of commands, like kubectl's kuberc.
type userConfig struct {
	Defaults []flagDefaults `json:"defaults"`
}

// flagDefaults are the defaults of one command.
type flagDefaults struct {
	Command string                `json:"command"` // as "lab get"
	Flags   map[string]flagValues `json:"flags"`
}

// flagValues are the values of a flag: several for a flag that may be repeated.
type flagValues []string

func readFlagValues(_ string, value any) (any, bool, error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	var values flagValues
	for _, v := range list {
		text, ok := yamlfile.TextOf(v)
		if !ok {
			return nil, false, nil
		}
		values = append(values, text)
	}
	return values, true, nil
}

// configPath returns the path of the configuration file, and whether it must exist; empty: no file is read.
func configPath() (path string, required bool) {
	switch path := os.Getenv(configVariable); path {
	case "off":
		return "", false
	case "":
		dir := os.Getenv("XDG_CONFIG_HOME")
		if home := os.Getenv("HOME"); dir == "" && home != "" {
			dir = filepath.Join(home, ".config")
		}
		if !filepath.IsAbs(dir) {
			return "", false
		}
		return filepath.Join(dir, "nfqproxy", "config.yaml"), false
	default:
		return path, true
	}
}

// useConfig makes all commands take the defaults of their flags from the configuration file. It is read when the flags
// of a command have been parsed, so that those on the command line win, and before its arguments are checked.
func useConfig(root *cobra.Command) {
	for _, cmd := range configurable(root) {
		checkArgs := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := setDefaults(cmd); err != nil {
				return err
			}
			if checkArgs == nil {
				return nil
			}
			return checkArgs(cmd, args)
		}
	}
}

// configurable returns the commands with flags by their names. The daemon has a configuration file of its own.
func configurable(root *cobra.Command) map[string]*cobra.Command {
	commands := make(map[string]*cobra.Command)
	var add func(prefix string, parent *cobra.Command)
	add = func(prefix string, parent *cobra.Command) {
		for _, cmd := range parent.Commands() {
			name := prefix + cmd.Name()
			if cmd.HasAvailableLocalFlags() && name != "run" {
				commands[name] = cmd
			}
			add(name+" ", cmd)
		}
	}
	add("", root)
	return commands
}

// setDefaults sets the flags that the configuration file has for a command and the command line has not. A flag that is
// set so counts as given, except for --cluster: as in a kubectl plugin, --server and --lab override it.
func setDefaults(cmd *cobra.Command) error {
	file, config, err := loadConfig(cmd.Root())
	if err != nil {
		return err
	}
	flags := cmd.Flags()
	for i, d := range config.Defaults {
		if configurable(cmd.Root())[d.Command] != cmd {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(d.Flags)) {
			f := flags.Lookup(name)
			if f.Changed {
				continue
			}
			set := func(value string) error { return flags.Set(name, value) }
			if name == "cluster" {
				set = f.Value.Set
			}
			for _, value := range d.Flags[name] {
				if err := set(value); err != nil {
					file.Fail(fmt.Sprintf("defaults[%d].flags[%s]", i, name), "%w", flagError(cmd, err))
				}
			}
		}
	}
	return file.Err()
}

// loadConfig reads the configuration file, if there is one, and checks all of it.
func loadConfig(root *cobra.Command) (*yamlfile.File, *userConfig, error) {
	path, required := configPath()
	file := &yamlfile.File{Name: path, Decoder: yamlfile.Decoder{
		ListFields: true,
		Formats:    map[reflect.Type]yamlfile.Format{reflect.TypeFor[flagValues](): {Want: "a value, or a list of values", Read: readFlagValues}},
	}}
	config := new(userConfig)
	if path == "" {
		return file, config, nil
	}
	data, err := os.ReadFile(path)
	switch {
	case !required && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR)):
		return file, config, nil // also for service users, whose home may be /dev/null or another user's
	case err != nil && required:
		return nil, nil, fmt.Errorf("$%s: %w", configVariable, err)
	case err != nil:
		return nil, nil, err
	}
	if file.Decode(data, "Config", config); file.Err() != nil {
		return nil, nil, file.Err()
	}
	checkConfig(file, config, configurable(root))
	return file, config, file.Err()
}

// checkConfig finds the commands and flags that do not exist.
func checkConfig(file *yamlfile.File, config *userConfig, commands map[string]*cobra.Command) {
	seen := make(map[string]bool)
	for i, d := range config.Defaults {
		at := fmt.Sprintf("defaults[%d]", i)
		cmd := commands[d.Command]
		switch {
		case cmd == nil && d.Command == "run":
			file.Fail(at+".command", "defaults for run cannot be set here: see nfqproxy run --config")
		case cmd == nil:
			file.Fail(at+".command", "unknown command %q%s", d.Command, nearest.Hint(d.Command, slices.Collect(maps.Keys(commands))))
		case seen[d.Command]:
			file.Fail(at+".command", "command %q is given twice", d.Command)
		}
		if seen[d.Command] = true; cmd == nil {
			continue
		}
		var names []string
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		for _, name := range slices.Sorted(maps.Keys(d.Flags)) {
			if given := strings.TrimLeft(name, "-"); cmd.LocalFlags().Lookup(name) == nil || name == "help" {
				file.Fail(fmt.Sprintf("%s.flags[%s]", at, name), "nfqproxy %s has no flag --%s%s", d.Command, given, nearest.Hint(given, names))
			}
		}
	}
}
