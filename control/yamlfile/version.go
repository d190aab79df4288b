package yamlfile

// APIVersion is the apiVersion of nfqproxy's own files: labs, experiments, units and chapters of a course, and the user's configuration.
const APIVersion = "nfqproxy.io/v1alpha1"

// formerAPIVersion is what such files had before they got the domain of the annotations. It means the same.
const formerAPIVersion = "nfqproxy.dev/v1alpha1"

// IsAPIVersion reports whether a file with this apiVersion is one that this program reads.
func IsAPIVersion(text string) bool { return text == APIVersion || text == formerAPIVersion }
